// Tables that become cards in a narrow box, the pages of a list, and tabs.

import { html, useId, useLayoutEffect, useState } from "../core/dom.js";
import { Button } from "./forms.js";
import { useWindow } from "./window.js";

const WINDOWED = 200; // rows; of a longer wide table only the rows in sight are in the document
const CARDS_AT_ONCE = 100; // cards of different heights cannot be windowed, so more are shown on request
const ROW_HEIGHT = 31; // pixels, as in the style sheet
const PLACEHOLDERS = 5;

/**
 * A column. In cards, the `primary` column is the head of the card (by default the first column with a text as title), columns of
 * `priority` 1 stand beside the head (by default `status`), those of 2 are labelled facts below it, those of 3 are left out. Columns of
 * priority 3 are also left out of tables that have little room.
 * @typedef {{title: any, key: string, cell?: (row: any) => any, align?: "left" | "right", hidden?: boolean, primary?: boolean, priority?: 1 | 2 | 3}} Column
 */

/**
 * A table; without `rows` it holds the room of rows that are still loading.
 * @param {{columns: Column[], rows: any[] | undefined, rowKey: string | ((row: any) => string), onRow?: (row: any) => void, empty?: any, label?: string, selected?: (row: any) => boolean}} props
 */
export function Table({ columns, rows, rowKey, onRow, empty, label = "Table", selected }) {
  const shown = columns.filter((column) => !column.hidden);
  const [cards, setCards] = useState(CARDS_AT_ONCE);
  const [fit, setFit] = useState("");
  const isCards = fit === "cards";
  const isLong = !isCards && (rows?.length ?? 0) > WINDOWED;
  const part = useWindow({ count: isLong && rows ? rows.length : 0, height: ROW_HEIGHT });
  useFit(part.ref, shown.length, rows?.length !== 0, setFit);
  if (rows?.length === 0) return empty ?? null;
  const keyOf = typeof rowKey === "function" ? rowKey : (/** @type {any} */ row) => row[rowKey];
  const placed = placesOf(shown);
  const inSight = isLong ? rows?.slice(part.from, part.to) : isCards ? rows?.slice(0, cards) : rows;
  const more = isCards && rows ? rows.length - cards : 0;
  // The roles are explicit because browsers drop those of a table whose rows are laid out as cards.
  return html`
    <div class=${`table-box ${fit} ${isLong ? "windowed" : ""}`} role="region" aria-label=${label} aria-busy=${rows ? undefined : "true"} tabindex="0" ref=${part.ref} onScroll=${isLong ? part.onScroll : undefined}>
      <table role="table">
        <thead role="rowgroup"><tr role="row">${placed.map(head)}</tr></thead>
        <tbody role="rowgroup">
          ${isLong && spacer(part.before, shown.length)}
          ${inSight?.map((row) => html`<${Row} key=${keyOf(row)} row=${row} columns=${placed} onRow=${onRow} isSelected=${selected?.(row) ?? false} />`)}
          ${!rows && placeholders(placed)}
          ${isLong && spacer(part.after, shown.length)}
        </tbody>
      </table>
    </div>
    ${more > 0 && html`<div class="actions"><${Button} onClick=${() => setCards(cards + CARDS_AT_ONCE)}>Show more (${more} left)<//></div>`}`;
}

/** @param {PlacedColumn} column */
const head = ({ title, key, place, align }) => (title === ""
  ? html`<td key=${key} role="cell" class=${place}></td>`
  : html`<th key=${key} scope="col" role="columnheader" class=${`${place} ${align ?? ""}`}>${title}</th>`);

/** @typedef {Column & {place: string}} PlacedColumn `place` is the class of its cells: where they stand in a card */

/**
 * Columns with their place in a card.
 * @param {Column[]} columns
 * @returns {PlacedColumn[]}
 */
export function placesOf(columns) {
  const head = columns.find(({ primary }) => primary) ?? columns.find(({ title }) => typeof title === "string" && title !== "") ?? columns[0];
  return columns.map((column, at) => ({ ...column, place: placeOf(column, at, head) }));
}

/** @param {Column} column @param {number} at @param {Column} head */
function placeOf(column, at, head) {
  if (column === head) return "in-head";
  if (typeof column.title !== "string" || column.title === "") return at === 0 ? "in-choice" : "in-actions";
  const priority = column.priority ?? (column.key === "status" ? 1 : 2);
  return { 1: "in-corner", 2: "in-facts", 3: "in-wide" }[priority];
}

/**
 * How a table with so many columns fits into a box: as `cards`, as a `tight` table without columns of priority 3, or whole.
 * @param {number} width pixels @param {number} columns
 */
export function fitOf(width, columns) {
  if (columns > 2 && width < (columns > 6 ? 760 : 560)) return "cards";
  return width < 960 ? "tight" : "";
}

/**
 * Measure a table's box before it is drawn, and again whenever its width changes.
 * @param {{current: HTMLElement | null}} ref @param {number} columns @param {boolean} isThere @param {(fit: string) => void} onFit
 */
function useFit(ref, columns, isThere, onFit) {
  useLayoutEffect(() => {
    const box = ref.current;
    if (!box) return;
    const measure = () => onFit(fitOf(box.clientWidth, columns));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box);
    return () => observer.disconnect();
  }, [columns, isThere]);
}

/** @param {{row: any, columns: PlacedColumn[], onRow?: (row: any) => void, isSelected: boolean}} props */
function Row({ row, columns, onRow, isSelected }) {
  const open = (/** @type {any} */ event) => {
    if (event.target.closest("a, button, input, select, textarea") || String(getSelection())) return;
    onRow?.(row);
  };
  const byKey = (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && event.target === event.currentTarget && onRow?.(row);
  const opens = onRow ? { onClick: open, onKeyDown: byKey, tabindex: 0, class: "opens" } : {};
  return html`
    <tr role="row" ...${opens} aria-selected=${isSelected ? "true" : undefined}>
      ${columns.map(({ key, title, place, cell, align }) => html`<td key=${key} role="cell" class=${`${place} ${align ?? ""}`} data-label=${place === "in-facts" ? title : undefined}>${cell ? cell(row) : row[key]}</td>`)}
    </tr>`;
}

/** @param {PlacedColumn[]} columns */
function placeholders(columns) {
  return Array.from({ length: PLACEHOLDERS }, (_, at) => html`
    <tr key=${at} role="row" aria-hidden="true">${columns.map(({ key, place, align }) => html`<td key=${key} role="cell" class=${`${place} ${align ?? ""}`}><span class="bone"></span></td>`)}</tr>`);
}

/** @param {number} height @param {number} columns */
const spacer = (height, columns) => (height > 0 ? html`<tr class="spacer" role="row" aria-hidden="true"><td role="cell" colspan=${columns} style=${{ height: `${height}px` }}></td></tr>` : null);

/**
 * Buttons for the previous and the next page of a list. `count` is the number of rows on this page, `total` the number of all rows if it is known.
 * @param {{offset: number, limit: number, count: number, total?: number | null, onChange: (offset: number) => void}} props
 */
export function Pager({ offset, limit, count, total, onChange }) {
  if (offset === 0 && count < limit && !total) return null;
  const hasMore = total === undefined || total === null ? count === limit : offset + count < total;
  const range = count ? `${offset + 1}–${offset + count}` : "none";
  return html`
    <nav class="pager" aria-label="Pages">
      <${Button} disabled=${offset === 0} onClick=${() => onChange(Math.max(0, offset - limit))}>Newer<//>
      <span>${range}${total ? ` of ${total}` : ""}</span>
      <${Button} disabled=${!hasMore} onClick=${() => onChange(offset + limit)}>Older<//>
    </nav>`;
}

/**
 * Tabs; the arrow keys move between them.
 * @param {{tabs: {id: string, label: any}[], current: string, onChange: (id: string) => void, label?: string, children?: any}} props
 */
export function Tabs({ tabs, current, onChange, label = "Views", children }) {
  const id = useId();
  const move = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex((tab) => tab.id === current);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    onChange(next.id);
    document.getElementById(`${id}-${next.id}`)?.focus();
  };
  return html`
    <div class="tabs" role="tablist" aria-label=${label} onKeyDown=${move}>
      ${tabs.map((tab) => html`
        <button key=${tab.id} id=${`${id}-${tab.id}`} type="button" role="tab" aria-selected=${String(tab.id === current)}
          aria-controls=${`${id}-panel`} tabindex=${tab.id === current ? 0 : -1} onClick=${() => onChange(tab.id)}>${tab.label}</button>`)}
    </div>
    <div role="tabpanel" id=${`${id}-panel`} aria-labelledby=${`${id}-${current}`}>${children}</div>`;
}
