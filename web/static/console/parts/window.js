// Which rows of a long list are in sight: only these are drawn.

import { useLayoutEffect, useRef, useState } from "../core/dom.js";

const BEYOND = 20; // rows that are drawn above and below what is in sight

/**
 * @param {{count: number, height: number}} props `height` of one row in pixels
 * @returns {{ref: any, onScroll: () => void, from: number, to: number, before: number, after: number}}
 */
export function useWindow({ count, height }) {
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(600);
  const onScroll = () => {
    const first = Math.floor((ref.current?.scrollTop ?? 0) / height);
    setTop(first - (first % 10)); // drawn anew every ten rows
  };
  useLayoutEffect(() => {
    if (ref.current && count) setRoom(ref.current.clientHeight || 600);
  }, [count > 0]);
  const from = Math.max(0, Math.min(top, count) - BEYOND);
  const to = Math.min(count, top + Math.ceil(room / height) + BEYOND + 10);
  return { ref, onScroll, from, to, before: from * height, after: Math.max(0, count - to) * height };
}
