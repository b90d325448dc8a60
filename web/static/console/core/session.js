// Who looks: the key is held in this tab's sessionStorage alone, and what it may do comes from the service. Under
// `runyard dev` pages of the project's app share that storage, so there the key is held in memory until a reload.

import { batch, signal } from "./dom.js";

/**
 * @typedef {{
 *   role: string, organization: {id: string, name: string}, key: {id: string, name: string} | null,
 *   version: string, dev: boolean,
 * }} Me
 */

const KEY = "runyard.key";
const ORGANIZATION = "runyard.organization";
const ROLES = ["open", "read", "run", "deploy", "admin", "operator"];
const ROOT = new URL("../../../../../", import.meta.url);

/** Who calls; null asks for a key. @type {import("../../vendor/signals.js").Signal<Me | null>} */
export const me = signal(null);

/** Whether it is still unknown who calls. */
export const isStarting = signal(true);

/** Why the last key was not taken, or was dropped. @type {import("../../vendor/signals.js").Signal<string>} */
export const refusal = signal("");

/** Whether this is `runyard dev`, which asks for no key on its own machine. */
export const isDev = document.documentElement.dataset.dev === "true";

/** @type {Pick<Storage, "getItem" | "setItem" | "removeItem">} */
const kept = isDev ? inMemory() : sessionStorage;

function inMemory() {
  /** @type {Map<string, string>} */
  const items = new Map();
  return {
    getItem: (/** @type {string} */ name) => items.get(name) ?? null,
    setItem: (/** @type {string} */ name, /** @type {string} */ value) => void items.set(name, value),
    removeItem: (/** @type {string} */ name) => void items.delete(name),
  };
}

/** The key of this tab, empty where there is none. */
export const key = () => kept.getItem(KEY) ?? "";

/** The headers that say who calls. @returns {Record<string, string>} */
export function credentials() {
  const organization = kept.getItem(ORGANIZATION);
  return { ...(key() && { "x-api-key": key() }), ...(key() && organization && { "x-tenant-id": organization }) };
}

/** Whether the caller's role is at least this one; a developer without a key may do at a deployment what users may. @param {string} role */
export function can(role) {
  const found = me.value;
  if (!found) return false;
  const least = found.dev && !key() ? "run" : found.role;
  return Math.max(ROLES.indexOf(found.role), ROLES.indexOf(least)) >= ROLES.indexOf(role);
}

/** Take a key, or go on without one where that is enough; it is forgotten when the service refuses it. @param {string} given */
export async function signIn(given) {
  kept.setItem(KEY, given.trim());
  return start();
}

/** Forget the key. @param {string} [why] */
export function signOut(why = "") {
  kept.removeItem(KEY);
  kept.removeItem(ORGANIZATION);
  batch(() => {
    me.value = null;
    refusal.value = why;
  });
}

/** Act for another organization from now on, as operators may. @param {string} id */
export function actFor(id) {
  if (id === kept.getItem(ORGANIZATION)) return;
  kept.setItem(ORGANIZATION, id);
  if (me.value) void start();
}

/** Ask the service who calls. */
export async function start() {
  if (!key() && !isDev) return stop("");
  try {
    const answer = await fetch(new URL("v2/me", ROOT), { headers: credentials(), cache: "no-store", credentials: "omit" });
    const body = await answer.json().catch(() => ({}));
    if (answer.ok) return known(body);
    if (answer.status === 401 || answer.status === 403) return stop(key() ? told(body, answer.status) : "");
    return stop(told(body, answer.status), { forget: false });
  } catch {
    return stop("Cannot reach the service.", { forget: false });
  }
}

/** @param {Me} found */
function known(found) {
  batch(() => {
    me.value = found;
    refusal.value = "";
    isStarting.value = false;
  });
}

/** @param {string} why */
function stop(why, { forget = true } = {}) {
  if (forget) signOut(why);
  else refusal.value = why;
  isStarting.value = false;
}

/** @param {any} body @param {number} status */
const told = (body, status) => (typeof body.detail === "string" ? body.detail : `The service answered ${status}.`);
