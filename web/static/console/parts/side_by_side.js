// Two JSON objects side by side. Differences are marked by colour and by a word.

import { html, useMemo, useState } from "../core/dom.js";
import { LongText } from "./index.js";

const MOST = 500; // entries of each object that are compared
const CUT = 300; // characters of an entry that are shown before it is expanded

/** @typedef {"same" | "added" | "removed" | "changed"} Kind */
/** @typedef {{path: string, before: string | undefined, after: string | undefined, kind: Kind}} Entry */

/**
 * The entries of both objects, sorted by path.
 * @param {Record<string, any>} before
 * @param {Record<string, any>} after
 * @returns {Entry[]}
 */
export function entries(before, after) {
  const [one, other] = [leaves(before), leaves(after)];
  return [...new Set([...one.keys(), ...other.keys()])].sort().map((path) => {
    const [was, is] = [one.get(path), other.get(path)];
    return { path, before: was, after: is, kind: was === is ? "same" : was === undefined ? "added" : is === undefined ? "removed" : "changed" };
  });
}

/** The leaves of an object by path. @param {any} value @returns {Map<string, string>} */
function leaves(value) {
  /** @type {Map<string, string>} */
  const found = new Map();
  visit(value, "");
  return found;

  /** @param {any} node @param {string} path */
  function visit(node, path) {
    if (found.size >= MOST) return;
    const isNode = node !== null && typeof node === "object";
    const names = isNode ? Object.keys(node) : [];
    if (!names.length) {
      if (path) found.set(path, typeof node === "string" ? node : (JSON.stringify(node) ?? ""));
      return;
    }
    for (const name of names) visit(node[name], Array.isArray(node) ? `${path}[${name}]` : path ? `${path}.${name}` : name);
  }
}

/** @type {Record<Kind, string>} */
const SIGNS = { same: "", added: "+", removed: "−", changed: "≠" };

/** @param {{before: Record<string, any>, after: Record<string, any>, beforeTitle: string, afterTitle: string}} props */
export function SideBySide({ before, after, beforeTitle, afterTitle }) {
  const [showsAll, setShowsAll] = useState(false);
  const all = /** @type {Entry[]} */ (useMemo(() => entries(before, after), [JSON.stringify(before), JSON.stringify(after)]));
  const different = all.filter((entry) => entry.kind !== "same");
  const shown = showsAll ? all : different;
  return html`
    <label class="check"><input type="checkbox" checked=${showsAll} onChange=${() => setShowsAll(!showsAll)} /> Show equal entries (${all.length - different.length})</label>
    ${!different.length && html`<p class="quiet">The two versions are equal.</p>`}
    ${shown.length > 0 && html`
      <div class="table-box" role="region" aria-label="Differences" tabindex="0">
        <table class="side-by-side">
          <thead><tr><th scope="col">Entry</th><th scope="col">${beforeTitle}</th><th scope="col">${afterTitle}</th></tr></thead>
          <tbody>${shown.map((entry) => html`<${EntryRow} key=${entry.path} entry=${entry} />`)}</tbody>
        </table>
      </div>`}`;
}

/** @param {{entry: Entry}} props */
function EntryRow({ entry: { path, before, after, kind } }) {
  return html`
    <tr class="difference ${kind}">
      <th scope="row"><span class="sign" title=${kind}>${SIGNS[kind]}<span class="unseen"> ${kind}</span></span> <code>${path}</code></th>
      <td class="was">${before !== undefined && html`<${LongText} text=${before} limit=${CUT} />`}</td>
      <td class="is">${after !== undefined && html`<${LongText} text=${after} limit=${CUT} />`}</td>
    </tr>`;
}
