// The drawing of a graph: nodes, edges and subgraphs that open. Nodes are highlighted while a run executes them.

import { html, useEffect, useId, useMemo, useRef, useState } from "../core/dom.js";
import { deployment as at } from "../core/api.js";
import { useResource } from "../core/resource.js";
import { ErrorBox, Loading } from "./index.js";
import { curve, labelOf, placed, subgraphsOf, visible } from "./graph_layout.js";

const STEP = 40, ZOOM = 1.25, MOST = 4, LEAST = 0.05, FITTED = 1.15;
const LOWEST = 200, HIGHEST = 560; // of the frame, in pixels
const READABLE = 0.85; // the smallest scale at which names of nodes are readable
const MANY = 8; // from this number of nodes on there is a list of them to zoom to
const NONE = new Set();

/**
 * @typedef {import("./graph_layout.js").Drawing} Drawing
 * @typedef {{x: number, y: number, scale: number}} Place of the drawing in its frame
 * @typedef {Iterable<string>} Names
 */

/**
 * The drawing of an assistant's graph. `active`, `asking`, `done` and `failed` name nodes. A node of a subgraph is `child:inner`.
 * @param {{deployment: string, assistantId: string, active?: Names, asking?: Names, done?: Names, failed?: Names}} props
 */
export function Graph({ deployment, assistantId, active = NONE, asking = NONE, done = NONE, failed = NONE }) {
  const { data, error } = useResource((signal) => drawingOf(deployment, assistantId, signal), [deployment, assistantId]);
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  return html`<${GraphView} key=${assistantId} drawing=${data} active=${active} asking=${asking} done=${done} failed=${failed} />`;
}

/** Load a drawing with the nodes of subgraphs; without them if the graph cannot describe its subgraphs. @param {string} deployment @param {string} assistantId @param {AbortSignal} signal */
async function drawingOf(deployment, assistantId, signal) {
  const path = `/assistants/${encodeURIComponent(assistantId)}/graph`;
  try {
    return await at(deployment).call("GET", path, { query: { xray: true }, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    return at(deployment).call("GET", path, { signal });
  }
}

/** @param {{drawing: Drawing, active: Names, asking: Names, done: Names, failed: Names}} props */
function GraphView({ drawing, active, asking, done, failed }) {
  const [open, setOpen] = useState(/** @type {Set<string>} */ (NONE));
  const layout = useMemo(() => placed(drawing, open), [drawing, open]);
  const arrow = useId();
  const frame = useRef(/** @type {HTMLElement|null} */ (null));
  const [place, setPlace] = useState(/** @type {Place|null} */ (null)); // null: the first view
  const [found, setFound] = useState(""); // the node that was zoomed to
  const { fitted, first } = useFitted(frame, layout);
  const shown = place ?? first;
  const move = (/** @type {(place: Place) => Place} */ change) => setPlace((before) => change(before ?? first));
  const zoomTo = (/** @type {string} */ id) => {
    const node = layout.nodes.find((each) => each.id === id);
    setFound(node ? id : "");
    if (node) move((before) => centered(node, Math.max(before.scale, 1), center(frame.current)));
  };
  const zoom = (/** @type {number} */ factor) => move((before) => zoomed(before, factor, center(frame.current)));
  useWheel(frame, move);
  const drag = useDrag(move);
  const subgraphs = useMemo(() => subgraphsOf(drawing), [drawing]);
  const toggle = (/** @type {string} */ id) => setOpen(toggled(open, id));
  const stateOf = (/** @type {string} */ id) => (has(active, id) ? "active" : has(asking, id) ? "asking" : has(failed, id) ? "failed" : has(done, id) ? "done" : "");

  return html`<div class="graph">
    <div
      class="graph-frame" ref=${frame} tabindex="0" style=${{ height: `${Math.min(HIGHEST, Math.max(LOWEST, layout.height * FITTED))}px` }} role="group" aria-label="Drawing of the graph: arrows move it, plus and minus zoom, 0 fits it"
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => onKey(event, move, zoom, () => setPlace(fitted))} ...${drag}
    >
      <svg role="img" aria-label=${summary(layout)} focusable="false">
        <title>${summary(layout)}</title>
        <defs>
          <marker id=${arrow} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
            <path d="M0,0 L8,4 L0,8 z" />
          </marker>
        </defs>
        <g transform=${`translate(${shown.x} ${shown.y}) scale(${shown.scale})`}>
          ${layout.boxes.map((box) => html`<${Box} key=${box.id} box=${box} onClose=${() => toggle(box.id)} />`)}
          ${layout.edges.map((line) => html`<${Edge} key=${line.key} line=${line} arrow=${arrow} isLit=${stateOf(line.target) === "active"} />`)}
          ${layout.nodes.map((node) => html`<${Node} key=${node.id} node=${node} state=${stateOf(node.id)} isFound=${node.id === found} onDblClick=${() => zoomTo(node.id)}
            onClick=${node.kind === "subgraph" ? () => toggle(node.id) : undefined} />`)}
        </g>
      </svg>
    </div>
    <div class="graph-tools" role="toolbar" aria-label="Drawing">
      <button type="button" onClick=${() => zoom(1 / ZOOM)} title="Smaller" aria-label="Smaller">−</button>
      <button type="button" onClick=${() => zoom(ZOOM)} title="Larger" aria-label="Larger">+</button>
      <button type="button" onClick=${() => setPlace(fitted)} title="Show the whole graph">Fit</button>
      ${layout.nodes.length > MANY && html`<select aria-label="Zoom to a node" value=${found} onChange=${(/** @type {Event} */ event) => zoomTo(/** @type {HTMLSelectElement} */ (event.currentTarget).value)}>
        <option value="">Zoom to…</option>
        ${layout.nodes.map((node) => html`<option key=${node.id} value=${node.id}>${node.id.split(":").join(" › ")}</option>`)}
      </select>`}
      ${subgraphs.length > 1 && html`
        <button type="button" onClick=${() => (setPlace(null), setOpen(new Set(subgraphs)))} disabled=${open.size === subgraphs.length}>Expand all</button>
        <button type="button" onClick=${() => (setPlace(null), setOpen(NONE))} disabled=${!open.size}>Collapse all</button>`}
      ${subgraphs.filter((id) => isReachable(id, open)).map((id) => html`<button
        type="button" key=${id} aria-expanded=${open.has(id) ? "true" : "false"} title=${open.has(id) ? `Close the subgraph ${id}` : `Open the subgraph ${id}`}
        onClick=${() => (setPlace(null), toggle(id))}>${open.has(id) ? "▾" : "▸"} ${id.split(":").join(" › ")}</button>`)}
    </div>
    <${NodeList} drawing=${drawing} open=${open} stateOf=${stateOf} />
  </div>`;
}

/** @param {{box: import("./graph_layout.js").Placed, onClose: () => void}} props */
function Box({ box, onClose }) {
  const left = box.x - box.width / 2, top = box.y - box.height / 2;
  return html`<g class="graph-box">
    <rect x=${left} y=${top} width=${box.width} height=${box.height} rx="8" />
    <text x=${left + 10} y=${top + 16} data-toggle=${box.id} onClick=${onClose}>▾ ${box.label}</text>
  </g>`;
}

/** @param {{line: import("./graph_layout.js").Line, arrow: string, isLit: boolean}} props */
function Edge({ line, arrow, isLit }) {
  const kind = `graph-edge${line.conditional ? " conditional" : ""}${isLit ? " lit" : ""}`;
  return html`<g class=${kind}>
    <path d=${curve(line.points)} marker-end=${`url(#${arrow})`} />
    ${line.at && html`<text x=${line.at.x} y=${line.at.y + 4}>${line.label}</text>`}
  </g>`;
}

/** @param {{node: import("./graph_layout.js").Placed, state: string, isFound: boolean, onClick?: () => void, onDblClick: () => void}} props */
function Node({ node, state, isFound, onClick, onDblClick }) {
  const tools = node.tools.join(", ");
  const isRound = node.kind === "start" || node.kind === "end";
  return html`<g class=${`graph-node ${node.kind} ${state}${isFound ? " found" : ""}`} data-node=${node.id} data-state=${state || null} onClick=${onClick} onDblClick=${onClick ? undefined : onDblClick}
      transform=${`translate(${node.x - node.width / 2} ${node.y - node.height / 2})`}>
    <title>${node.id}${state ? `: ${WORDS[state]}` : ""}</title>
    <rect width=${node.width} height=${node.height} rx=${isRound ? node.height / 2 : 6} />
    <text x=${node.width / 2} y=${tools ? 20 : node.height / 2 + 5}>${node.kind === "subgraph" ? "▸ " : ""}${node.label}</text>
    ${tools && html`<text class="graph-tool-names" x=${node.width / 2} y="37">${tools.length > 40 ? `${tools.slice(0, 39)}…` : tools}</text>`}
  </g>`;
}

const WORDS = /** @type {Record<string, string>} */ ({ active: "running", asking: "asks", done: "done", failed: "failed" });

/** The nodes and edges as a list for screen readers. @param {{drawing: Drawing, open: Set<string>, stateOf: (id: string) => string}} props */
function NodeList({ drawing, open, stateOf }) {
  const { nodes, edges } = useMemo(() => visible(drawing, open), [drawing, open]);
  const outOf = (/** @type {string} */ id) => edges.filter((edge) => edge.source === id);
  return html`<ul class="graph-list" aria-label="Nodes of the graph">
    ${nodes.map(({ id }) => html`<li key=${id}>
      ${labelOf(id)}${stateOf(id) ? ` (${WORDS[stateOf(id)]})` : ""}${outOf(id).length ? " leads to " : ""}
      ${outOf(id).map((edge) => `${labelOf(edge.target)}${edge.label ? ` if ${edge.label}` : edge.conditional ? " on a condition" : ""}`).join(", ")}
    </li>`)}
  </ul>`;
}

/** @param {import("./graph_layout.js").Layout} layout */
function summary(layout) {
  const names = layout.nodes.filter((node) => node.kind === "node" || node.kind === "subgraph").map((node) => node.label);
  return `Graph of ${names.length} ${names.length === 1 ? "node" : "nodes"}: ${names.join(", ")}`;
}

/** @param {Names} names @param {string} id */
function has(names, id) {
  return names instanceof Set ? names.has(id) : [...names].includes(id);
}

/** @param {Set<string>} open @param {string} id */
function toggled(open, id) {
  const after = new Set(open);
  if (after.has(id)) for (const each of open) if (each === id || each.startsWith(`${id}:`)) after.delete(each);
  if (!open.has(id)) after.add(id);
  return after;
}

/** Whether the subgraphs around this one are open. @param {string} id @param {Set<string>} open */
function isReachable(id, open) {
  const outer = id.split(":").slice(0, -1).join(":");
  return outer === "" || open.has(outer);
}

// Moving and zooming

/** @param {HTMLElement|null} frame */
function center(frame) {
  return { x: (frame?.clientWidth ?? 0) / 2, y: (frame?.clientHeight ?? 0) / 2 };
}

/** @param {Place} place @param {number} factor @param {{x: number, y: number}} about @returns {Place} */
function zoomed(place, factor, about) {
  const scale = Math.min(MOST, Math.max(LEAST, place.scale * factor));
  const by = scale / place.scale;
  return { scale, x: about.x - (about.x - place.x) * by, y: about.y - (about.y - place.y) * by };
}

/** Return the place at which a node is in the middle of the frame. @param {{x: number, y: number}} node @param {number} scale @param {{x: number, y: number}} middle @returns {Place} */
const centered = (node, scale, middle) => ({ scale, x: middle.x - node.x * scale, y: middle.y - node.y * scale });

/**
 * Return two places: `fitted` shows the whole drawing. `first` is the same, or the start of a large drawing at a readable scale.
 * @param {{current: HTMLElement|null}} frame @param {import("./graph_layout.js").Layout} layout
 */
function useFitted(frame, layout) {
  const [size, setSize] = useState({ width: 0, height: 0 });
  useEffect(() => {
    const box = /** @type {HTMLElement} */ (frame.current);
    const watcher = new ResizeObserver(() => setSize({ width: box.clientWidth, height: box.clientHeight }));
    watcher.observe(box);
    return () => watcher.disconnect();
  }, []);
  return useMemo(() => {
    const scale = Math.min(FITTED, size.width / (layout.width || 1), size.height / (layout.height || 1)) || 1;
    const fitted = { scale, x: (size.width - layout.width * scale) / 2, y: (size.height - layout.height * scale) / 2 };
    if (scale >= READABLE || !size.width) return { fitted, first: fitted };
    const start = layout.nodes.find((node) => node.kind === "start") ?? layout.nodes[0] ?? { x: 0, y: 0 };
    return { fitted, first: centered(start, READABLE, { x: size.width / 2, y: start.y * READABLE + 12 }) };
  }, [size, layout]);
}

/** Zoom with Ctrl and the wheel. The wheel alone scrolls the page. @param {{current: HTMLElement|null}} frame @param {(change: (place: Place) => Place) => void} move */
function useWheel(frame, move) {
  const latest = useRef(move);
  latest.current = move;
  useEffect(() => {
    const box = /** @type {HTMLElement} */ (frame.current);
    const onWheel = (/** @type {WheelEvent} */ event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const edge = box.getBoundingClientRect();
      const about = { x: event.clientX - edge.left, y: event.clientY - edge.top };
      latest.current((before) => zoomed(before, Math.exp(-event.deltaY / 300), about));
    };
    box.addEventListener("wheel", onWheel, { passive: false });
    return () => box.removeEventListener("wheel", onWheel);
  }, []);
}

/** @param {(change: (place: Place) => Place) => void} move */
function useDrag(move) {
  const from = useRef(/** @type {{x: number, y: number}|null} */ (null));
  return {
    onPointerDown: (/** @type {PointerEvent} */ event) => {
      if (event.button === 0 && event.pointerType === "mouse") from.current = { x: event.clientX, y: event.clientY };
    },
    onPointerMove: (/** @type {PointerEvent} */ event) => {
      if (!from.current || !(event.buttons & 1)) return void (from.current = null);
      const dx = event.clientX - from.current.x, dy = event.clientY - from.current.y;
      if (Math.abs(dx) + Math.abs(dy) < 3) return;
      from.current = { x: event.clientX, y: event.clientY };
      move((before) => ({ ...before, x: before.x + dx, y: before.y + dy }));
    },
    onPointerUp: () => void (from.current = null),
  };
}

/** @param {KeyboardEvent} event @param {(change: (place: Place) => Place) => void} move @param {(factor: number) => void} zoom @param {() => void} fit */
function onKey(event, move, zoom, fit) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const shift = /** @type {Record<string, [number, number]>} */ ({
    ArrowLeft: [STEP, 0], ArrowRight: [-STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP],
  })[event.key];
  if (shift) move((before) => ({ ...before, x: before.x + shift[0], y: before.y + shift[1] }));
  else if (event.key === "+" || event.key === "=") zoom(ZOOM);
  else if (event.key === "-") zoom(1 / ZOOM);
  else if (event.key === "0") fit();
  else return;
  event.preventDefault();
}
