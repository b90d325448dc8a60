// Addresses within the page: `#/d/chat/threads?status=busy`. They survive any prefix that a proxy puts before the page.

import { signal } from "./dom.js";

/** @typedef {{path: string, params: Record<string, string>, query: Record<string, string>}} Place */
/** @typedef {string | (string | number)[]} Path a path as it is written, or its parts, which are encoded */

/** Where the reader is. @type {import("../../vendor/signals.js").Signal<Place>} */
export const location_ = signal({ path: "/", params: {}, query: {} });

/** Finds the route of a path; `start` says how. @type {(path: string) => Record<string, string>} */
let paramsOf = () => ({});

/** Begin to follow the address bar. @param {(path: string) => Record<string, string>} findParams */
export function start(findParams) {
  paramsOf = findParams;
  addEventListener("hashchange", look);
  look();
}

function look() {
  const [path, query = ""] = splitOnce(decodeHash(location.hash.replace(/^#/, "")), "?");
  location_.value = { path: path || "/", params: paramsOf(path || "/"), query: Object.fromEntries(new URLSearchParams(query)) };
}

/** Some programs escape the whole fragment when they open a link. @param {string} hash */
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
 * Change filters of this page; an empty value takes one away. The back button leads to the page before unless `push`.
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
  look();
}

/**
 * A test of paths: `/d/:name/threads(/:thread)` gives `{name, thread}`, or null for another path.
 * @param {string} pattern
 * @returns {(path: string) => Record<string, string> | null}
 */
export function matcher(pattern) {
  const names = [...pattern.matchAll(/:(\w+)/g)].map(([, name]) => name);
  const source = pattern.replace(/\(([^)]*)\)/g, "(?:$1)?").replace(/:\w+/g, "([^/]+)");
  const expression = new RegExp(`^${source}/?$`);
  return (path) => {
    const found = expression.exec(path);
    if (!found) return null;
    return Object.fromEntries(names.flatMap((name, at) => (found[at + 1] === undefined ? [] : [[name, decoded(found[at + 1])]])));
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
