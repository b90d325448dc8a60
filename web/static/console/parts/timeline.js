// A timeline: bands of time as rows of a tree on one axis. A band is chosen to see its details, and can be zoomed to.

import { html, useEffect, useMemo, useState } from "../core/dom.js";
import { clock, duration, plain } from "../core/format.js";
import { around, axisOf, rowsOf, wholeOf } from "./time_axis.js";
import { Windowed } from "./windowed.js";

/**
 * @typedef {import("./time_axis.js").Band} Band
 * @typedef {import("./time_axis.js").Row} Row
 */

const ROW_HEIGHT = 28, NARROW_ROW_HEIGHT = 46;
const NARROW = "(max-width: 700px)";
const LEAST_WIDTH = 0.3; // percent
/** @type {Record<string, string>} */
const KINDS = { queue: "queue", claim: "claim", host_start: "host", attempt: "attempt", node: "node", model: "model", tool: "tool", person: "person", build_step: "step" };
/** @type {Record<string, string>} */
const STATUSES = { error: "failed", timeout: "timed out", interrupted: "interrupted", lost: "lost", running: "running", waiting: "waiting" };

/**
 * `now` (ms) is the end of bands that still last. `detail` draws the details of the chosen band.
 * @param {{bands: Band[], now: number, label: string, detail: (band: Band) => any}} props
 */
export function Timeline({ bands, now, label, detail }) {
  const [closed, setClosed] = useState(/** @type {Set<string>} */ (new Set()));
  const [zoomed, setZoomed] = useState(/** @type {string | null} */ (null));
  const [chosen, setChosen] = useState(/** @type {string | null} */ (null));
  const isNarrow = useNarrow();
  const all = useMemo(() => rowsOf(bands, { now }), [bands, now]);
  const target = all.find((row) => row.band.id === zoomed);
  const view = target ? around(target) : wholeOf(bands, now);
  const rows = useMemo(() => rowsOf(bands, { closed, now, view: target ? view : null }), [bands, closed, now, zoomed]);
  const axis = useMemo(() => axisOf(bands, view, now), [bands, now, zoomed]);
  const place = rows.findIndex((row) => row.band.id === chosen);
  const row = place < 0 ? undefined : rows[place];

  const toggle = (/** @type {Row} */ { band }) => setClosed((before) => {
    const after = new Set(before);
    if (!after.delete(band.id)) after.add(band.id);
    return after;
  });
  const choose = (/** @type {number} */ at) => rows.length && setChosen(rows[Math.min(Math.max(at, 0), rows.length - 1)].band.id);
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key === "ArrowDown") choose(place + 1);
    else if (key === "ArrowUp") choose(place - 1);
    else if (key === "Home") choose(0);
    else if (key === "End") choose(rows.length - 1);
    else if (key === "ArrowRight" && row?.hasInner && !row.isOpen) toggle(row);
    else if (key === "ArrowLeft" && row?.isOpen) toggle(row);
    else if (key === "ArrowLeft" && row) choose(rows.findIndex((each) => each.band.id === row.band.parent));
    else if (key === "Enter" && row) setZoomed(zoomed === row.band.id ? null : row.band.id);
    else if (key === "0" || key === "Escape") setZoomed(null);
    else return;
    event.preventDefault();
  };
  const isNested = all.some((each) => each.hasInner && each.depth > 0);
  const inner = all.filter((each) => each.hasInner && each.depth > 0).map((each) => each.band.id);
  const render = (/** @type {number} */ at) => html`<${Bar} key=${rows[at].band.id} row=${rows[at]} axis=${axis} isChosen=${at === place}
    onChoose=${() => setChosen(rows[at].band.id)} onToggle=${() => toggle(rows[at])} onZoom=${() => setZoomed(rows[at].band.id)} />`;
  return html`
    <div class="timeline">
      <div class="timeline-tools" role="toolbar" aria-label="Timeline">
        <span class="quiet">${duration((view.until - view.from) / 1000)}${target ? html` around <strong>${plain(target.band.name)}</strong>` : ""}</span>
        ${row && row.band.id !== zoomed && html`<button type="button" onClick=${() => setZoomed(row.band.id)}>Zoom to ${plain(row.band.name.slice(0, 40))}</button>`}
        ${zoomed !== null && html`<button type="button" onClick=${() => setZoomed(null)}>Show all</button>`}
        ${isNested && html`<button type="button" onClick=${() => setClosed(closed.size ? new Set() : new Set(inner))}>${closed.size ? "Expand all" : "Collapse nodes"}</button>`}
      </div>
      <div class="timeline-axis" aria-hidden="true">
        ${axis.ticks.map((tick) => html`<span key=${tick.left} class=${tick.isEnd ? "last" : ""} style=${{ left: `${tick.left * 100}%` }}>${tick.text}</span>`)}
      </div>
      <${Windowed} class="timeline-rows" role="tree" label=${label} count=${rows.length} rowHeight=${isNarrow ? NARROW_ROW_HEIGHT : ROW_HEIGHT} render=${render} active=${place} onKeyDown=${onKeyDown} />
      ${row && html`<${Chosen} row=${row} detail=${detail} onClose=${() => setChosen(null)} />`}
    </div>`;
}

/** @param {{row: Row, axis: import("./time_axis.js").Axis, isChosen: boolean, onChoose: () => void, onToggle: () => void, onZoom: () => void}} props */
function Bar({ row, axis, isChosen, onChoose, onToggle, onZoom }) {
  const { band, depth, from, until } = row;
  const left = Math.min(axis.place(from) * 100, 100 - LEAST_WIDTH);
  const width = Math.max(axis.place(until) * 100 - left, LEAST_WIDTH);
  const name = plain(band.name.slice(0, 200));
  const status = STATUSES[band.status];
  const took = duration((until - from) / 1000);
  return html`
    <div class=${`timeline-row${isChosen ? " chosen" : ""}`} role="treeitem" aria-level=${depth + 1} aria-selected=${isChosen} aria-expanded=${row.hasInner ? row.isOpen : null}
      data-kind=${band.kind} data-status=${band.status} onClick=${onChoose} onDblClick=${onZoom}>
      <span class="timeline-name" style=${{ paddingLeft: `${Math.min(depth, 8) * 14}px` }} title=${name}>
        <span class="timeline-toggle" aria-hidden="true" onClick=${row.hasInner ? (/** @type {Event} */ event) => (event.stopPropagation(), onToggle()) : undefined}>${row.hasInner ? (row.isOpen ? "▾" : "▸") : ""}</span>
        <span class="unseen">${KINDS[band.kind] ?? band.kind} </span>${name}
        ${(band.kind === "model" || band.kind === "tool") && html` <small aria-hidden="true">${KINDS[band.kind]}</small>`}
      </span>
      <span class="timeline-track">
        ${axis.gaps.map((gap) => html`<span key=${gap.left} class="timeline-gap" style=${{ left: `${gap.left * 100}%`, width: `${gap.width * 100}%` }} title=${`${gap.text}, shortened`}></span>`)}
        <span class=${`span-bar ${band.kind} ${band.status}`} style=${{ left: `${left}%`, width: `${Math.min(width, 100 - left)}%` }}></span>
      </span>
      <span class="timeline-duration">${took}${status ? html` · <span class="timeline-status">${status}</span>` : ""}</span>
    </div>`;
}

/** @param {{row: Row, detail: (band: Band) => any, onClose: () => void}} props */
function Chosen({ row, detail, onClose }) {
  const { band } = row;
  return html`
    <section class="timeline-detail" aria-label=${`Details of ${plain(band.name.slice(0, 100))}`}>
      <header>
        <h3>${plain(band.name.slice(0, 200))} <span class="quiet">${KINDS[band.kind] ?? band.kind}${STATUSES[band.status] ? ` · ${STATUSES[band.status]}` : ""}</span></h3>
        <button type="button" class="plain" onClick=${onClose}>Close</button>
      </header>
      <p class="facts"><span>${clock(row.from)} – ${band.ended_at ? clock(row.until) : "now"}</span> <span>${duration((row.until - row.from) / 1000)}</span> ${band.detail && html`<span>${plain(band.detail)}</span>`}</p>
      ${detail(band)}
    </section>`;
}

/** Whether the page is as narrow as a phone. */
function useNarrow() {
  const [isNarrow, setNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const changed = () => setNarrow(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return isNarrow;
}
