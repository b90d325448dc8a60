// A JSON value as a tree: nodes open on demand, long ones are windowed, long texts are cut.

import { html, useMemo, useState } from "../core/dom.js";
import { bytes, plain } from "../core/format.js";
import { WholeText } from "./code.js";
import { Copy } from "./small.js";
import { useWindow } from "./window.js";

const LINE_HEIGHT = 21;
const WINDOWED = 150; // lines; of fewer all are drawn
const PORTION = 500; // children of one node that are listed at a time
const CUT = 300;

/** @typedef {{path: string, depth: number, name: string | null, value: any, isOpen: boolean, more?: number}} Line */

/**
 * @param {{value: any, collapsed?: number | boolean, label?: string}} props `collapsed`: how many levels are open at first
 */
export function Json({ value, collapsed = 1, label = "Value" }) {
  const levels = typeof collapsed === "number" ? collapsed : collapsed ? 0 : 2;
  const [toggled, setToggled] = useState(/** @type {Record<string, boolean>} */ ({}));
  const [portions, setPortions] = useState(/** @type {Record<string, number>} */ ({}));
  const [whole, setWhole] = useState(/** @type {string | null} */ (null));
  const lines = useMemo(() => linesOf(value, levels, toggled, portions), [value, levels, toggled, portions]);
  const isLong = lines.length > WINDOWED;
  const part = useWindow({ count: isLong ? lines.length : 0, height: LINE_HEIGHT });
  const shown = isLong ? lines.slice(part.from, part.to) : lines;
  const toggle = (/** @type {Line} */ line) => setToggled({ ...toggled, [line.path]: !line.isOpen });
  const more = (/** @type {Line} */ line) => setPortions({ ...portions, [line.path]: (portions[line.path] ?? PORTION) + PORTION });
  return html`
    <div class="json">
      <${Copy} text=${copied(value)} />
      <div class=${isLong ? "json-lines windowed" : "json-lines"} role="region" aria-label=${label} tabindex="0" ref=${part.ref} onScroll=${isLong ? part.onScroll : undefined}>
        ${isLong && html`<div style=${{ height: `${part.before}px` }}></div>`}
        ${shown.map((line) => html`<${LineView} key=${line.more ? `${line.path}+` : line.path} line=${line} toggle=${toggle} more=${more} show=${setWhole} />`)}
        ${isLong && html`<div style=${{ height: `${part.after}px` }}></div>`}
      </div>
      <${WholeText} text=${whole ?? ""} open=${whole !== null} onClose=${() => setWhole(null)} />
    </div>`;
}

/** Written out only when it is copied. @param {any} value */
const copied = (value) => /** @type {any} */ ({ toString: () => (typeof value === "string" ? value : JSON.stringify(value, null, 2)) });

/** @param {any} value @param {number} levels @param {Record<string, boolean>} toggled @param {Record<string, number>} portions */
function linesOf(value, levels, toggled, portions) {
  /** @type {Line[]} */
  const lines = [];
  add("$", 0, null, value);
  return lines;

  /** @param {string} path @param {number} depth @param {string | null} name @param {any} node */
  function add(path, depth, name, node) {
    const isNode = node !== null && typeof node === "object";
    const isOpen = isNode && (toggled[path] ?? depth < levels);
    lines.push({ path, depth, name, value: node, isOpen });
    if (!isOpen) return;
    const names = Array.isArray(node) ? null : Object.keys(node);
    const size = names ? names.length : node.length;
    const end = Math.min(size, portions[path] ?? PORTION);
    for (let at = 0; at < end; at++) {
      const child = names ? names[at] : String(at);
      add(`${path}/${child.replaceAll("/", "~1")}`, depth + 1, child, names ? node[child] : node[at]);
    }
    if (end < size) lines.push({ path, depth: depth + 1, name: null, value: null, isOpen: false, more: size - end });
  }
}

/** @param {{line: Line, toggle: (line: Line) => void, more: (line: Line) => void, show: (text: string) => void}} props */
function LineView({ line, toggle, more, show }) {
  const indent = { paddingLeft: `${line.depth * 16}px` };
  if (line.more) return html`<div class="json-line" style=${indent}><button type="button" class="plain" onClick=${() => more(line)}>… ${line.more} more</button></div>`;
  const isNode = line.value !== null && typeof line.value === "object";
  const name = line.name !== null && html`<span class="json-name">${plain(line.name.slice(0, CUT))}</span>`;
  if (!isNode) return html`<div class="json-line" style=${indent}><span class="json-mark"></span>${name}${leaf(line.value, show)}</div>`;
  return html`<div class="json-line" style=${indent}>
    <button type="button" class="plain json-node" aria-expanded=${String(line.isOpen)} onClick=${() => toggle(line)}><span class="json-mark">${line.isOpen ? "▾" : "▸"}</span>${name}<span class="quiet">${summary(line.value)}</span></button></div>`;
}

/** @param {any} node */
function summary(node) {
  if (Array.isArray(node)) return node.length ? `[${node.length}]` : "[]";
  const names = Object.keys(node);
  return names.length ? `{${names.slice(0, 4).map((name) => plain(name.slice(0, 20))).join(", ")}${names.length > 4 ? ", …" : ""}}` : "{}";
}

/** @param {any} value @param {(text: string) => void} show */
function leaf(value, show) {
  if (typeof value !== "string") return html`<span class=${`json-${value === null ? "null" : typeof value}`}>${String(value)}</span>`;
  if (value.length <= CUT && !value.includes("\n")) return html`<span class="json-string">${JSON.stringify(plain(value))}</span>`;
  const head = JSON.stringify(plain(value.slice(0, CUT)));
  return html`<span class="json-string">${value.length > CUT ? `${head.slice(0, -1)}…` : head}</span>${" "}
    <button type="button" class="plain more" onClick=${() => show(value)}>show all (${bytes(value.length)})</button>`;
}
