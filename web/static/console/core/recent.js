// Pages that the reader visited in this tab, latest first. Signing out and another organization forget them.

import { effect, signal } from "./dom.js";
import { href } from "./router.js";
import { isDev, isStarting, me } from "./session.js";

const STORED = "runyard.recent";
const MOST = 20;
const SUFFIX = " – runyard";

/** @typedef {{address: string, title: string}} Visit */
/** @type {import("../../vendor/signals.js").Signal<Visit[]>} */
export const recent = signal([]);

/** Record that a page was shown. @param {string} path @param {string} documentTitle */
export function remember(path, documentTitle) {
  const caller = me.peek();
  if (!caller || !documentTitle.endsWith(SUFFIX)) return; // signed out, or no such page
  const address = href(path);
  const visit = { address, title: documentTitle.slice(0, -SUFFIX.length) };
  recent.value = [visit, ...recent.peek().filter((one) => one.address !== address)].slice(0, MOST);
  // Under `runyard dev`, pages of the project's app could read the storage.
  if (!isDev) sessionStorage.setItem(STORED, JSON.stringify({ organization: caller.organization.id, visits: recent.peek() }));
}

/** The visits that a reload of this tab left. @param {string} organization @returns {Visit[]} */
function stored(organization) {
  try {
    const { organization: of, visits } = JSON.parse(sessionStorage.getItem(STORED) ?? "{}");
    return of === organization ? visits : [];
  } catch {
    return [];
  }
}

let organization = "";
effect(() => {
  const id = me.value?.organization.id ?? "";
  if (isStarting.value || id === organization) return;
  organization = id;
  recent.value = id && !isDev ? stored(id) : [];
  if (!id) sessionStorage.removeItem(STORED);
});
