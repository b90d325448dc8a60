// Positions of the nodes and edges of a graph. Subgraphs are closed at first.

import dagre from "../../vendor/dagre.js";

const CHARACTER = 7.4, PADDING = 28, HEIGHT = 34, TALL = 50, SMALL = 13; // in pixels
const SEPARATOR = ":";

/**
 * @typedef {{id: string, type?: string, data?: any, metadata?: any}} ApiNode
 * @typedef {{source: string, target: string, data?: string, conditional?: boolean}} ApiEdge
 * @typedef {{nodes: ApiNode[], edges: ApiEdge[]}} Drawing as `GET /assistants/ID/graph` gives it
 * @typedef {{id: string, label: string, kind: "start"|"end"|"node"|"subgraph"|"box", tools: string[], x: number, y: number, width: number, height: number}} Placed
 * @typedef {{key: string, source: string, target: string, label: string, conditional: boolean, points: {x: number, y: number}[], at: {x: number, y: number}|null}} Line
 * @typedef {{width: number, height: number, nodes: Placed[], edges: Line[], boxes: Placed[]}} Layout
 */

/** Return the subgraphs of a drawing, outer ones first. @param {Drawing} drawing */
export function subgraphsOf(drawing) {
  const found = new Set();
  for (const { id } of drawing.nodes) {
    const parts = id.split(SEPARATOR);
    for (let depth = 1; depth < parts.length; depth += 1) found.add(parts.slice(0, depth).join(SEPARATOR));
  }
  return /** @type {string[]} */ ([...found].sort());
}

/** Return the node that represents a node: the outermost closed subgraph around it, or the node. @param {string} id @param {Set<string>} open */
export function shownAs(id, open) {
  const parts = id.split(SEPARATOR);
  for (let depth = 1; depth < parts.length; depth += 1) {
    const outer = parts.slice(0, depth).join(SEPARATOR);
    if (!open.has(outer)) return outer;
  }
  return id;
}

/** Return the visible nodes and edges. @param {Drawing} drawing @param {Set<string>} open */
export function visible(drawing, open) {
  const subgraphs = new Set(subgraphsOf(drawing));
  const nodes = new Map();
  for (const node of drawing.nodes) {
    const id = shownAs(node.id, open);
    if (!nodes.has(id)) nodes.set(id, id === node.id ? node : { id });
  }
  const edges = new Map();
  for (const edge of drawing.edges) {
    const source = shownAs(edge.source, open), target = shownAs(edge.target, open);
    const isInside = source === target && edge.source !== edge.target;
    if (isInside) continue;
    const label = edge.data && edge.data !== edge.target && edge.data !== target ? String(edge.data) : "";
    const key = `${source} ${target} ${label}`;
    if (!edges.has(key)) edges.set(key, { key, source, target, label, conditional: Boolean(edge.conditional) });
  }
  return { nodes: [...nodes.values()], edges: [...edges.values()], subgraphs };
}

/** @param {string} id */
export const labelOf = (id) => {
  const name = id.split(SEPARATOR).at(-1) ?? id;
  return name.replace(/^__(.+)__$/, "$1");
};

/**
 * @param {Drawing} drawing
 * @param {Set<string>} open subgraphs that are opened
 * @returns {Layout}
 */
export function placed(drawing, open) {
  const { nodes, edges, subgraphs } = visible(drawing, open);
  const graph = new dagre.graphlib.Graph({ compound: true, multigraph: true });
  graph.setGraph({ rankdir: "TB", nodesep: 28, ranksep: 42, edgesep: 14, marginx: 14, marginy: 14 });
  graph.setDefaultEdgeLabel(() => ({}));
  const boxes = [...subgraphs].filter((id) => open.has(id) && shownAs(id, open) === id);
  for (const id of boxes) graph.setNode(id, { id, label: labelOf(id), kind: "box", tools: [] });
  for (const node of nodes) graph.setNode(node.id, sized(node, subgraphs));
  for (const id of [...boxes, ...nodes.map((node) => node.id)]) {
    const outer = id.split(SEPARATOR).slice(0, -1).join(SEPARATOR);
    if (outer && boxes.includes(outer)) graph.setParent(id, outer);
  }
  for (const edge of edges) {
    const space = edge.label ? { width: edge.label.length * 6.4 + 10, height: 16, labelpos: "c" } : {};
    graph.setEdge(edge.source, edge.target, { ...edge, ...space }, edge.key);
  }
  dagre.layout(graph);
  const at = graph.graph();
  const all = graph.nodes().map((/** @type {string} */ id) => graph.node(id)).filter(Boolean);
  return {
    width: at.width ?? 0,
    height: at.height ?? 0,
    nodes: all.filter((/** @type {Placed} */ node) => node.kind !== "box"),
    boxes: all.filter((/** @type {Placed} */ node) => node.kind === "box"),
    edges: graph.edges().map((/** @type {any} */ edge) => lineOf(graph.edge(edge))),
  };
}

/** @param {ApiNode} node @param {Set<string>} subgraphs */
function sized(node, subgraphs) {
  const label = labelOf(node.id);
  const tools = /** @type {string[]} */ (node.metadata?.__tools ?? []);
  const kind = node.id === "__start__" ? "start" : node.id === "__end__" ? "end" : subgraphs.has(node.id) ? "subgraph" : "node";
  const second = tools.join(", ").slice(0, 40);
  const width = Math.max(label.length * CHARACTER, second.length * 6) + PADDING + (kind === "subgraph" ? SMALL : 0);
  return { id: node.id, label, kind, tools, width: Math.max(width, 60), height: tools.length ? TALL : HEIGHT };
}

/** @param {any} edge @returns {Line} */
function lineOf(edge) {
  const { key, source, target, label, conditional, points } = edge;
  return { key, source, target, label, conditional, points, at: label ? { x: edge.x, y: edge.y } : null };
}

/** A smooth line through points. @param {{x: number, y: number}[]} points */
export function curve(points) {
  const [first, ...rest] = points;
  let path = `M${round(first.x)},${round(first.y)}`;
  for (let at = 0; at < rest.length - 1; at += 1) {
    const here = rest[at], next = rest[at + 1];
    const isLast = at === rest.length - 2;
    const to = isLast ? next : { x: (here.x + next.x) / 2, y: (here.y + next.y) / 2 };
    path += ` Q${round(here.x)},${round(here.y)} ${round(to.x)},${round(to.y)}`;
  }
  if (rest.length === 1) path += ` L${round(rest[0].x)},${round(rest[0].y)}`;
  return path;
}

/** @param {number} value */
const round = (value) => Math.round(value * 10) / 10;
