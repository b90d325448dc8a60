// The caller: an API key in this tab's sessionStorage, or a session that sign-in has put into a cookie.
//
// Scripts cannot read the session's cookie. Requests with the cookie also need the session's CSRF token, which only a page
// of the console's origin can fetch. The token is kept in memory. Under `runyard dev`, pages of the project's app share
// sessionStorage with the console, so there the key is kept in memory too, and sign-in is not available.

import { batch, signal } from "./dom.js";

/**
 * @typedef {{
 *   role: string, organization: {id: string, name: string}, key: {id: string, name: string} | null,
 *   user?: {id: string, name: string} | null, version: string, dev: boolean,
 * }} Me
 * @typedef {{label: string, start_url: string}} Provider
 */

const KEY = "runyard.key";
const ORGANIZATION = "runyard.organization";
const CSRF = "x-runyard-csrf";
const ROLES = ["open", "read", "run", "deploy", "admin", "operator"];
const ROOT = new URL("../../../../../", import.meta.url);
const UNREACHABLE = "Cannot reach the service.";

/** The caller; null shows the sign-in page. @type {import("../../vendor/signals.js").Signal<Me | null>} */
export const me = signal(null);

/** Whether the caller is not known yet. */
export const isStarting = signal(true);

/** Why the last key or session was refused or has ended. @type {import("../../vendor/signals.js").Signal<string>} */
export const refusal = signal("");

/** The provider that people sign in with; null without one, undefined before it is known. @type {import("../../vendor/signals.js").Signal<Provider | null | undefined>} */
export const provider = signal(undefined);

/** Whether this is `runyard dev`, which needs no key on its own machine. */
export const isDev = document.documentElement.dataset.dev === "true";

/** @type {Pick<Storage, "getItem" | "setItem" | "removeItem">} */
const kept = isDev ? inMemory() : sessionStorage;

/** The CSRF token of the session; empty without a session. */
let csrf = "";

function inMemory() {
  /** @type {Map<string, string>} */
  const items = new Map();
  return {
    getItem: (/** @type {string} */ name) => items.get(name) ?? null,
    setItem: (/** @type {string} */ name, /** @type {string} */ value) => void items.set(name, value),
    removeItem: (/** @type {string} */ name) => void items.delete(name),
  };
}

/** The key of this tab; empty without one. */
export const key = () => kept.getItem(KEY) ?? "";

/** Whether requests of this tab use the session in the cookie. A key takes precedence. */
export const hasSession = () => !key() && csrf !== "";

/** Whether there is a key or a session that the service can end. */
export const isSignedIn = () => key() !== "" || hasSession();

/** The headers that identify the caller. @returns {Record<string, string>} */
export function credentials() {
  const organization = kept.getItem(ORGANIZATION);
  /** @type {Record<string, string>} */
  const tenant = isSignedIn() && organization ? { "x-tenant-id": organization } : {};
  if (key()) return { "x-api-key": key(), ...tenant };
  return hasSession() ? { [CSRF]: csrf, ...tenant } : {};
}

/** Whether requests carry cookies: only those that use the session. @returns {RequestCredentials} */
export const cookies = () => (hasSession() ? "same-origin" : "omit");

/** Whether the caller's role is at least this one. A developer without a key has at most the role `run`. @param {string} role */
export function can(role) {
  const found = me.value;
  if (!found) return false;
  const least = found.dev && !key() ? "run" : found.role;
  return Math.max(ROLES.indexOf(found.role), ROLES.indexOf(least)) >= ROLES.indexOf(role);
}

/** Use a key. It is forgotten if the service refuses it. @param {string} given */
export async function signIn(given) {
  kept.setItem(KEY, given.trim());
  return start();
}

/** The address where a person signs in, and returns from to the current page. @param {Provider} at */
export function addressOfSignIn({ start_url }) {
  const url = new URL(start_url);
  const place = location.hash.replace(/^#/, "");
  if (place.startsWith("/")) url.searchParams.set("next", place);
  return url.href;
}

/** Forget the key and the session in this tab. @param {string} [why] */
export function signOut(why = "") {
  kept.removeItem(KEY);
  kept.removeItem(ORGANIZATION);
  csrf = "";
  batch(() => {
    me.value = null;
    refusal.value = why;
  });
}

/** End the session at the service and at the provider, or forget the key. */
export async function leave() {
  if (!hasSession()) return signOut();
  const answer = await fetch(new URL("v2/sign-out", ROOT), { method: "POST", headers: credentials(), cache: "no-store", credentials: cookies(), redirect: "error" }).catch(() => null);
  if (!answer?.ok) return void (refusal.value = UNREACHABLE);
  const { logout_url } = await answer.json();
  signOut("You have signed out.");
  if (logout_url) location.assign(logout_url);
}

/** Act for another organization from now on, as operators may. @param {string} id */
export function actFor(id) {
  if (id === kept.getItem(ORGANIZATION)) return;
  kept.setItem(ORGANIZATION, id);
  if (me.value) void start();
}

/** Find out who calls: by the key, else by the session. */
export async function start() {
  if (!key() && !isDev) await Promise.all([findSession(), findProvider()]);
  if (!isSignedIn() && !isDev) return stop(refusal.value);
  try {
    const answer = await fetch(new URL("v2/me", ROOT), { headers: credentials(), cache: "no-store", credentials: cookies(), redirect: "error" });
    const body = await answer.json().catch(() => ({}));
    if (answer.ok) return known(body);
    if (answer.status === 401 || answer.status === 403) return stop(isSignedIn() ? detailOf(body, answer.status) : "");
    return stop(detailOf(body, answer.status), { forget: false });
  } catch {
    return stop(UNREACHABLE, { forget: false });
  }
}

/** After a refused request: sign out with the reason, unless another tab has signed in anew. @param {string} why */
export async function refused(why) {
  if (!hasSession()) return signOut(why);
  const before = csrf;
  await findSession();
  if (csrf && csrf !== before) return start();
  signOut(refusal.value || "Your session has ended. Sign in again.");
  isStarting.value = false;
}

/** Read the session of this browser. */
async function findSession() {
  csrf = "";
  try {
    const { session, ended } = await read("v2/sign-in/session", { headers: { [CSRF]: "?" }, credentials: "same-origin" });
    csrf = session?.csrf_token ?? "";
    if (ended) refusal.value = ended;
  } catch {
    refusal.value ||= UNREACHABLE;
  }
}

/** Read which provider people sign in with, once. */
export async function findProvider() {
  if (isDev || provider.value !== undefined) return;
  const found = await read("v2/sign-in", { credentials: "omit" }).catch(() => null);
  if (found) provider.value = found.is_configured ? found : null;
}

/** @param {string} path @param {RequestInit} options @returns {Promise<any>} */
async function read(path, options) {
  const answer = await fetch(new URL(path, ROOT), { ...options, cache: "no-store", redirect: "error" });
  if (!answer.ok) throw new Error(path);
  return answer.json();
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
const detailOf = (body, status) => (typeof body.detail === "string" ? body.detail : `The service answered ${status}.`);
