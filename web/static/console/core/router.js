// Addresses within the page: `#/d/chat/threads?status=busy`. As fragments they are independent of a prefix that a proxy adds.

import { signal } from "./dom.js";

/** @typedef {{path: string, params: Record<string, string>, query: Record<string, string>}} Place */
/** @typedef {string | (string | number)[]} Path a path, or its parts, which are then encoded */

/** The current address. @type {import("../../vendor/signals.js").Signal<Place>} */
export const location_ = signal({ path: "/", params: {}, query: {} });

/** Return the parameters in a path; set by `start`. @type {(path: string) => Record<string, string>} */
let paramsOf = () => ({});

/** Follow the address bar from now on. @param {(path: string) => Record<string, string>} findParams */
export function start(findParams) {
  paramsOf = findParams;
  addEventListener("hashchange", readAddress);
  readAddress();
}

function readAddress() {
  const [path, query = ""] = splitOnce(decodeHash(location.hash.replace(/^#/, "")), "?");
  location_.value = { path: path || "/", params: paramsOf(path || "/"), query: Object.fromEntries(new URLSearchParams(query)) };
}

/** Decode a fragment that is escaped as a whole, as some programs do when they open a link. @param {string} hash */
const decodeHash = (hash) => (/^%2f/i.test(hash) ? decoded(hash) : hash);

/** @param {string} text @param {string} mark */
function splitOnce(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

/**
 * The address of a page: `href(["d", name, "threads", id], {status: "busy"})`.
 * @param {Path} path @param {Record<string, any>} [query]
 */
export function href(path, query = {}) {
  const text = Array.isArray(path) ? `/${path.map((part) => encodeURIComponent(part)).join("/")}` : path.replace(/[^\w\-.~!$&'()*+,;=:@/%]/gu, encodeURIComponent);
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return `#${text}${search && `?${search}`}`;
}

/** Go to a page. @param {Path} path @param {Record<string, any>} [query] @param {{replace?: boolean}} [options] */
export function navigate(path, query = {}, { replace = false } = {}) {
  go(href(path, query), replace);
}

/**
 * Change filters of this page; an empty value removes a filter. Replaces the entry in the history unless `push`.
 * @param {Record<string, any>} changes @param {{push?: boolean}} [options]
 */
export function setQuery(changes, { push = false } = {}) {
  const { path, query } = location_.peek();
  go(href(path, { ...query, ...changes }), !push);
}

/** @param {string} address @param {boolean} replace */
function go(address, replace) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  readAddress();
}

/**
 * Compile a pattern: `/d/:name/threads(/:thread)` becomes a function that returns `{name, thread}`, or null if the path does not match.
 * @param {string} pattern
 * @returns {(path: string) => Record<string, string> | null}
 */
export function matcher(pattern) {
  const names = [...pattern.matchAll(/:(\w+)/g)].map(([, name]) => name);
  const source = pattern.replace(/\(([^)]*)\)/g, "(?:$1)?").replace(/:\w+/g, "([^/]+)");
  const expression = new RegExp(`^${source}/?$`);
  return (path) => {
    const groups = expression.exec(path);
    if (!groups) return null;
    return Object.fromEntries(names.flatMap((name, at) => (groups[at + 1] === undefined ? [] : [[name, decoded(groups[at + 1])]])));
  };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
