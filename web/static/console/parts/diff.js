// The difference between two states: added, changed and removed paths. Depth and number are bounded, so values of any size can be compared.

import { html, useMemo } from "../core/dom.js";
import { plain } from "../core/format.js";
import { Json } from "./index.js";
import { Message, isMessage } from "./message.js";

/**
 * @typedef {"added" | "changed" | "removed"} Kind
 * @typedef {{path: string, kind: Kind, before?: unknown, after?: unknown}} Change
 * @typedef {{changes: Change[], isCut: boolean}} Difference
 */

const MOST_CHANGES = 200;
const MOST_LEVELS = 8;

/**
 * The changes that turn `before` into `after`. `isCut`: there are more changes than listed.
 * @param {unknown} before
 * @param {unknown} after
 * @returns {Difference}
 */
export function difference(before, after) {
  /** @type {Change[]} */
  const changes = [];
  compare(before, after, "", 0, changes);
  return { changes: changes.slice(0, MOST_CHANGES), isCut: changes.length > MOST_CHANGES };
}

/**
 * @param {any} before
 * @param {any} after
 * @param {string} path
 * @param {number} level
 * @param {Change[]} changes
 */
function compare(before, after, path, level, changes) {
  if (changes.length > MOST_CHANGES || isSame(before, after)) return;
  if (before === undefined) changes.push({ path, kind: "added", after });
  else if (after === undefined) changes.push({ path, kind: "removed", before });
  else if (level >= MOST_LEVELS || isMessage(before) || isMessage(after)) changes.push({ path, kind: "changed", before, after });
  else if (Array.isArray(before) && Array.isArray(after)) compareLists(before, after, path, level, changes);
  else if (isObject(before) && isObject(after)) compareObjects(before, after, path, level, changes);
  else changes.push({ path, kind: "changed", before, after });
}

/**
 * @param {Record<string, unknown>} before
 * @param {Record<string, unknown>} after
 * @param {string} path
 * @param {number} level
 * @param {Change[]} changes
 */
function compareObjects(before, after, path, level, changes) {
  for (const key of Object.keys(after)) compare(own(before, key), after[key], joined(path, key), level + 1, changes);
  for (const key of Object.keys(before)) {
    if (!Object.hasOwn(after, key)) compare(before[key], undefined, joined(path, key), level + 1, changes);
  }
}

/**
 * Equal items at both ends are skipped. The items between them are compared one by one.
 * @param {unknown[]} before
 * @param {unknown[]} after
 * @param {string} path
 * @param {number} level
 * @param {Change[]} changes
 */
function compareLists(before, after, path, level, changes) {
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && isSame(before[start], after[start])) start++;
  let tail = 0;
  while (tail < shorter - start && isSame(before[before.length - 1 - tail], after[after.length - 1 - tail])) tail++;
  const [beforeEnd, afterEnd] = [before.length - tail, after.length - tail];
  for (let at = start; at < Math.max(beforeEnd, afterEnd) && changes.length <= MOST_CHANGES; at++) {
    compare(at < beforeEnd ? before[at] : undefined, at < afterEnd ? after[at] : undefined, `${path}[${at}]`, level + 1, changes);
  }
}

/** @param {Record<string, unknown>} object @param {string} key */
const own = (object, key) => (Object.hasOwn(object, key) ? object[key] : undefined);

/** @param {unknown} value */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const PLAIN = /^[A-Za-z_][\w-]*$/;

/** @param {string} path @param {string} key */
const joined = (path, key) => (PLAIN.test(key) ? (path ? `${path}.${key}` : key) : `${path}[${JSON.stringify(key.slice(0, 100))}]`);

/**
 * Whether two JSON values are equal.
 * @param {any} one
 * @param {any} other
 * @returns {boolean}
 */
export function isSame(one, other) {
  if (one === other) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Array.isArray(one) !== Array.isArray(other)) return false;
  if (Array.isArray(one)) return one.length === other.length && one.every((item, at) => isSame(item, other[at]));
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => Object.hasOwn(other, key) && isSame(one[key], other[key]));
}

const SIGNS = { added: "+", changed: "~", removed: "−" };

/**
 * The changes between two values, one under the other.
 * @param {{before: unknown, after: unknown}} props
 */
export function Diff({ before, after }) {
  const { changes, isCut } = useMemo(() => difference(before, after), [before, after]);
  if (!changes.length) return html`<p class="quiet">Nothing changed.</p>`;
  return html`
    <ul class="diff" aria-label="Changed values">
      ${changes.map((change) => html`<${Line} key=${change.path} change=${change} />`)}
      ${isCut && html`<li class="quiet">There are more changes. The state shows all values.</li>`}
    </ul>`;
}

/** @param {{change: Change}} props */
function Line({ change }) {
  const { kind, path } = change;
  const isShort = [change.before, change.after].every(isBrief);
  return html`
    <li class=${`change ${kind}`}>
      <div class="change-path">
        <span class="sign" title=${kind}>${SIGNS[kind]}<span class="unseen"> ${kind}</span></span> <code>${plain(path.slice(0, 300)) || "all"}</code>
        ${isShort && html`<span class="brief">${kind !== "added" && html`<code class="was">${brief(change.before)}</code>`}${kind === "changed" && " → "}${kind !== "removed" && html`<code class="is">${brief(change.after)}</code>`}</span>`}
      </div>
      ${!isShort && html`<div class="change-values">
        ${kind !== "added" && html`<div class="was"><${Value} value=${change.before} /></div>`}
        ${kind !== "removed" && html`<div class="is"><${Value} value=${change.after} /></div>`}
      </div>`}
    </li>`;
}

/** Whether a value needs no line of its own. @param {unknown} value */
const isBrief = (value) => (typeof value === "string" ? value.length <= 60 && !value.includes("\n") : typeof value !== "object" || value === null);

/** @param {unknown} value */
const brief = (value) => (typeof value === "string" ? JSON.stringify(plain(value)) : String(value));

/** @param {{value: unknown}} props */
function Value({ value }) {
  return isMessage(value) ? html`<${Message} message=${value} />` : html`<${Json} value=${value} collapsed=${0} />`;
}
