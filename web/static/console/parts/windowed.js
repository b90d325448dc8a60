// A long list of rows of one height, of which only those in sight are in the document.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/dom.js";

const MORE_ROWS = 8; // above and below what is in sight

/**
 * `onRange` is called with the first and the last row in sight, `active` is kept in sight when it changes. With `follow` the end
 * stays in sight as the list grows, until the reader scrolls away (`onLeave`).
 * @param {{count: number, rowHeight: number, render: (at: number) => any, label: string, role?: string, follow?: boolean, onLeave?: () => void, active?: number,
 *   onRange?: (first: number, last: number) => void, onKeyDown?: (event: KeyboardEvent) => void, class?: string}} props
 */
export function Windowed({ count, rowHeight, render, label, role = "list", follow = false, onLeave, active = -1, onRange, onKeyDown, ...more }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 600 });
  const follows = useRef(follow);
  follows.current = follow;
  const top = follow ? Math.max(count * rowHeight - view.height, 0) : view.top;
  const first = Math.max(Math.floor(top / rowHeight) - MORE_ROWS, 0);
  const last = Math.min(Math.ceil((top + view.height) / rowHeight) + MORE_ROWS, count);

  const look = () => {
    const element = box.current;
    if (!element) return;
    const { scrollTop: top, clientHeight: height } = element;
    setView((old) => (old.top === top && old.height === height ? old : { top, height }));
  };
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => { onRange?.(first, last); }, [first, last, count]);
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = count * rowHeight;
  }, [follow, count]);
  useLayoutEffect(() => { if (!follow) look(); }, [follow]);
  useEffect(() => {
    if (active >= 0 && box.current) keepInSight(box.current, active * rowHeight, rowHeight);
  }, [active]);

  const scrolled = () => {
    const element = box.current;
    if (!follows.current) look();
    else if (element && element.scrollHeight - element.scrollTop - element.clientHeight > 2 * rowHeight) onLeave?.(); // by the reader's own hand
  };
  const rows = [];
  for (let at = first; at < last; at++) rows.push(render(at));
  return html`
    <div ref=${box} class=${`rows-window ${more.class ?? ""}`} role=${role} aria-label=${label} tabindex="0" style=${{ "--rows": `${count * rowHeight + 2}px` }} onScroll=${scrolled} onKeyDown=${onKeyDown}>
      <div class="rows-all" role="presentation" style=${{ height: `${count * rowHeight}px` }}>
        <div class="rows-shown" role="presentation" style=${{ transform: `translateY(${first * rowHeight}px)` }}>${rows}</div>
      </div>
    </div>`;
}

/** @param {HTMLElement} box @param {number} top @param {number} height */
function keepInSight(box, top, height) {
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + height > box.scrollTop + box.clientHeight) box.scrollTop = top + height - box.clientHeight;
}
