// Lists: tables whose rows may be opened, their pages, and tabs. A long table shows the rows in sight alone.

import { html, useId } from "../core/dom.js";
import { Button } from "./forms.js";
import { useWindow } from "./window.js";

const WINDOWED = 200; // rows; of fewer all are drawn
const ROW_HEIGHT = 33;

/**
 * @typedef {{title: string, key: string, cell?: (row: any) => any, align?: "left" | "right", hidden?: boolean}} Column
 * @param {{columns: Column[], rows: any[], rowKey: string | ((row: any) => string), onRow?: (row: any) => void, empty?: any, label?: string, selected?: (row: any) => boolean}} props
 */
export function Table({ columns, rows, rowKey, onRow, empty, label = "Table", selected }) {
  const shown = columns.filter((column) => !column.hidden);
  const isLong = rows.length > WINDOWED;
  const part = useWindow({ count: isLong ? rows.length : 0, height: ROW_HEIGHT });
  if (rows.length === 0) return empty ?? null;
  const keyOf = typeof rowKey === "function" ? rowKey : (/** @type {any} */ row) => row[rowKey];
  const inSight = isLong ? rows.slice(part.from, part.to) : rows;
  return html`
    <div class=${isLong ? "table-box windowed" : "table-box"} role="region" aria-label=${label} tabindex="0" ref=${part.ref} onScroll=${isLong ? part.onScroll : undefined}>
      <table>
        <thead><tr>${shown.map(({ title, key, align }) => html`<th key=${key} scope="col" class=${align ?? ""}>${title}</th>`)}</tr></thead>
        <tbody>
          ${isLong && spacer(part.before, shown.length)}
          ${inSight.map((row) => html`<${Row} key=${keyOf(row)} row=${row} columns=${shown} onRow=${onRow} isSelected=${selected?.(row) ?? false} />`)}
          ${isLong && spacer(part.after, shown.length)}
        </tbody>
      </table>
    </div>`;
}

/** @param {{row: any, columns: Column[], onRow?: (row: any) => void, isSelected: boolean}} props */
function Row({ row, columns, onRow, isSelected }) {
  const open = (/** @type {any} */ event) => {
    if (event.target.closest("a, button, input, select, textarea") || String(getSelection())) return;
    onRow?.(row);
  };
  const byKey = (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && event.target === event.currentTarget && onRow?.(row);
  const opens = onRow ? { onClick: open, onKeyDown: byKey, tabindex: 0, class: "opens" } : {};
  return html`
    <tr ...${opens} aria-selected=${isSelected ? "true" : undefined}>
      ${columns.map(({ key, cell, align }) => html`<td key=${key} class=${align ?? ""}>${cell ? cell(row) : row[key]}</td>`)}
    </tr>`;
}

/** @param {number} height @param {number} columns */
const spacer = (height, columns) => (height > 0 ? html`<tr class="spacer" aria-hidden="true"><td colspan=${columns} style=${{ height: `${height}px` }}></td></tr>` : null);

/**
 * The page before and after; `count` rows are on this one, and `total` in all where that is known.
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
