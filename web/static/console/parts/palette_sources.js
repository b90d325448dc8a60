// The entries of the command palette: deployments, pages, actions, and the latest threads, runs and assistants of deployments.

import { control, deployment } from "../core/api.js";
import { ago, short, text } from "../core/format.js";
import { href, navigate } from "../core/router.js";
import { can, isSignedIn, leave } from "../core/session.js";
import { THEMES, setTheme } from "../core/theme.js";
import { addressOfEntry, entriesOf } from "./navigation.js";
import { copy } from "./small.js";

/**
 * An entry of the palette: it leads to an address or does something.
 * @typedef {{group: string, label: string, hint?: string, icon: any, keywords?: string[], address?: string, act?: () => void}} Item
 */
/** @typedef {import("../main.js").Route} Route */
/** @typedef {{id: string, name: string, status: string, least_key_role: string | null}} Deployment */

const DEPLOYMENTS = 100;
const LATEST = 50; // threads, runs and assistants of a deployment each
const SEARCHED_DEPLOYMENTS = 5; // of which threads, runs and assistants are loaded while no deployment is open
const RUN_STATUSES = ["pending", "running", "success", "error", "timeout", "interrupted"];
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** @param {AbortSignal} signal @returns {Promise<Deployment[]>} */
export async function loadDeployments(signal) {
  return (await control("GET", "/v2/deployments", { query: { limit: DEPLOYMENTS }, signal })).resources;
}

/** The names of the deployments whose API accepts the caller. @param {Deployment[]} deployments */
export const searchable = (deployments) => deployments.filter(({ least_key_role: role }) => role !== null && can(role)).map(({ name }) => name);

/** The deployments whose threads, runs and assistants are searched. @param {string[]} names @param {string | undefined} current */
export const searched = (names, current) => (current ? names.filter((name) => name === current) : names.slice(0, SEARCHED_DEPLOYMENTS));

/** @param {Deployment[]} deployments @returns {Item[]} */
export const deploymentItems = (deployments) => deployments.map(({ id, name, status }) => (
  { group: "Deployments", label: name, hint: status.toLowerCase().replaceAll("_", " "), icon: "deployment", address: href(["deployments", id]) }));

/**
 * Pages of the service, and of deployments.
 * @param {Route[]} routes @param {Deployment[]} deployments
 * @returns {Item[]}
 */
export function pageItems(routes, deployments) {
  const service = [...entriesOf(routes, "service"), ...entriesOf(routes, "administration")];
  const ofDeployments = deployments.flatMap((one) => entriesOf(routes, "deployment").filter(({ label }) => label !== "Deployment").map((entry) => (
    { group: "Pages", label: entry.label, hint: one.name, icon: entry.icon, keywords: [one.name], address: addressOfEntry(entry, one) })));
  return [...ofDeployments, ...service.map((entry) => ({ group: "Pages", label: entry.label, icon: entry.icon, address: addressOfEntry(entry) }))];
}

/** @returns {Item[]} */
export function actionItems() {
  return [
    ...(can("admin") ? [{ group: "Actions", label: "New API key", icon: "plus", keywords: ["create"], act: () => navigate("/keys", { new: "1" }) }] : []),
    ...THEMES.map(({ value, label, icon }) => ({ group: "Actions", label: `Theme: ${label}`, icon, keywords: ["colours appearance mode"], act: () => setTheme(value) })),
    { group: "Actions", label: "Copy the link to this page", icon: "copy", keywords: ["address url share"], act: () => void copy(location.href) },
    ...(isSignedIn() ? [{ group: "Actions", label: "Sign out", icon: "signout", keywords: ["log out leave"], act: leave }] : []),
  ];
}

/**
 * The latest threads, runs and assistants of deployments. A deployment that cannot be searched now has none.
 * @param {string[]} names @param {AbortSignal} signal
 * @returns {Promise<Item[]>}
 */
export async function loadObjects(names, signal) {
  return settled(names.flatMap((name) => [loadThreads(name, { limit: LATEST }, signal), loadRuns(name, { limit: LATEST }, signal), loadAssistants(name, signal)]));
}

/**
 * The thread or run with this id, if the query is one. The first part of a run's id is the time of its creation, so the run is searched
 * among those of the same moment.
 * @param {string} query @param {string[]} names @param {AbortSignal} signal
 * @returns {Promise<Item[]>}
 */
export async function loadById(query, names, signal) {
  const id = query.trim().toLowerCase();
  if (!UUID.test(id)) return [];
  const createdAt = parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
  const moment = { since: new Date(createdAt - 2000).toISOString(), until: new Date(createdAt + 2000).toISOString(), limit: 1000 };
  const items = await settled(names.flatMap((name) => [loadThreads(name, { ids: [id], limit: 1 }, signal), loadRuns(name, moment, signal)]));
  return items.filter(({ keywords }) => keywords?.includes(id));
}

/** @param {string} name @param {Record<string, any>} criteria @param {AbortSignal} signal @returns {Promise<Item[]>} */
async function loadThreads(name, criteria, signal) {
  const body = { select: ["thread_id", "status", "updated_at"], extract: { title: "metadata.title", message: "values.messages[0].content" }, ...criteria };
  const threads = await deployment(name).call("POST", "/threads/search", { body, signal });
  return threads.map((/** @type {any} */ thread) => ({
    group: "Threads", label: titleOf(thread), hint: `${name} · ${short(thread.thread_id)} · ${ago(thread.updated_at)}`, icon: "threads",
    keywords: [name, thread.thread_id], address: href(["d", name, "threads", thread.thread_id]),
  }));
}

/** @param {any} thread */
function titleOf({ thread_id, extracted }) {
  const title = extracted?.title || extracted?.message;
  return title ? text(title, 100) : `Thread ${short(thread_id)}`;
}

/** @param {string} name @param {Record<string, any>} criteria @param {AbortSignal} signal @returns {Promise<Item[]>} */
async function loadRuns(name, criteria, signal) {
  const runs = await deployment(name).call("POST", "/runs/search", { body: { status: RUN_STATUSES, ...criteria }, signal });
  return runs.map((/** @type {any} */ run) => ({
    group: "Runs", label: `${run.metadata?.graph_id ?? "Run"} ${short(run.run_id)}`, hint: `${name} · ${run.status} · ${ago(run.created_at)}`, icon: "runs",
    keywords: [name, run.run_id, run.status], address: href(["d", name, "runs", run.thread_id, run.run_id]),
  }));
}

/** @param {string} name @param {AbortSignal} signal @returns {Promise<Item[]>} */
async function loadAssistants(name, signal) {
  const body = { limit: LATEST, select: ["assistant_id", "name", "graph_id"] };
  const assistants = await deployment(name).call("POST", "/assistants/search", { body, signal });
  return assistants.map((/** @type {any} */ one) => ({
    group: "Assistants", label: text(one.name || "Untitled", 100), hint: name, icon: "assistants",
    keywords: [name, one.assistant_id, one.graph_id], address: href(["d", name, "assistants", one.assistant_id]),
  }));
}

/** The items of all calls that succeeded. @param {Promise<Item[]>[]} calls */
async function settled(calls) {
  const results = await Promise.allSettled(calls);
  return results.flatMap((result) => (result.status === "fulfilled" ? result.value : []));
}
