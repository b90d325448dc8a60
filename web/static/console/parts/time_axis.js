// Geometry of timelines: rows of a tree of bands, and the scale of their axis. Long waits for a person and the gaps between
// runs are shortened, so that runs of seconds stay readable beside a wait of hours.

import { duration } from "../core/format.js";

/**
 * @typedef {{id: string, parent: string | null, kind: string, name: string, started_at: string, ended_at: string | null, status: string,
 *   detail: string | null, run_id?: string, checkpoint_id?: string | null, checkpoint_ns?: string | null}} Band
 * @typedef {{band: Band, depth: number, from: number, until: number, hasInner: boolean, isOpen: boolean}} Row
 * @typedef {{from: number, until: number}} View in milliseconds
 * @typedef {{from: number, until: number, left: number, width: number, isGap: boolean}} Part of the axis, `left` and `width` as parts of 1
 * @typedef {{parts: Part[], place: (at: number) => number, ticks: {left: number, text: string, isEnd?: boolean}[], gaps: {left: number, width: number, text: string}[]}} Axis
 */

const GAP = 0.12, GAPS = 0.4; // of the axis: one gap at most, all gaps at most
const LONG = 1; // a gap is shortened if it is longer than this multiple of the rest
const TICKS = 4;

/** @param {Band} band @param {number} now milliseconds */
const endOf = (band, now) => (band.ended_at ? Date.parse(band.ended_at) : Math.max(now, Date.parse(band.started_at)));

/**
 * Bands as rows, each followed by those within it. Bands within a closed one are left out.
 * @param {Band[]} bands
 * @param {{closed?: Set<string>, now: number, view?: View | null}} options
 * @returns {Row[]}
 */
export function rowsOf(bands, { closed = new Set(), now, view = null }) {
  const known = new Set(bands.map((band) => band.id));
  /** @type {Map<string | null, Band[]>} */
  const inner = new Map();
  for (const band of bands) {
    const parent = band.parent !== null && band.parent !== band.id && known.has(band.parent) ? band.parent : null;
    inner.set(parent, [...(inner.get(parent) ?? []), band]);
  }
  /** @type {Row[]} */
  const rows = [];
  const add = (/** @type {string | null} */ parent, /** @type {number} */ depth) => {
    for (const band of inner.get(parent) ?? []) {
      const from = Date.parse(band.started_at), until = endOf(band, now);
      const hasInner = inner.has(band.id), isOpen = hasInner && !closed.has(band.id);
      if (!view || (until >= view.from && from <= view.until)) rows.push({ band, depth, from, until, hasInner, isOpen });
      if (isOpen) add(band.id, depth + 1);
    }
  };
  add(null, 0);
  return rows;
}

/**
 * The time from the first band to the last one.
 * @param {Band[]} bands @param {number} now
 * @returns {View}
 */
export function wholeOf(bands, now) {
  const from = bands.reduce((least, band) => Math.min(least, Date.parse(band.started_at)), Infinity);
  const until = bands.reduce((most, band) => Math.max(most, endOf(band, now)), -Infinity);
  return Number.isFinite(from) ? { from, until: Math.max(until, from + 1) } : { from: now, until: now + 1 };
}

/**
 * The axis of a view.
 * @param {Band[]} bands @param {View} view @param {number} now
 * @returns {Axis}
 */
export function axisOf(bands, view, now) {
  const busy = merged(bands.filter((band) => band.kind !== "person").map((band) => [Date.parse(band.started_at), endOf(band, now)]), view);
  const pieces = piecesOf(busy, view);
  const worked = pieces.reduce((sum, piece) => sum + (piece.isGap ? 0 : piece.until - piece.from), 0);
  const cut = pieces.map((piece) => (worked > 0 && piece.isGap && piece.until - piece.from > LONG * worked ? { ...piece, isGap: true } : { ...piece, isGap: false }));
  const gaps = cut.filter((piece) => piece.isGap).length;
  const gapWidth = gaps ? Math.min(GAP, GAPS / gaps) : 0;
  const linear = cut.reduce((sum, piece) => sum + (piece.isGap ? 0 : piece.until - piece.from), 0) || 1;
  let left = 0;
  const parts = cut.map((piece) => {
    const width = piece.isGap ? gapWidth : ((piece.until - piece.from) / linear) * (1 - gaps * gapWidth);
    const part = { ...piece, left, width };
    left += width;
    return part;
  });
  const place = (/** @type {number} */ at) => {
    if (at <= view.from) return 0;
    const part = parts.find((each) => at <= each.until);
    return part ? Math.min(part.left + ((at - part.from) / (part.until - part.from || 1)) * part.width, 1) : 1;
  };
  return { parts, place, ticks: ticksOf(parts, view), gaps: parts.filter((part) => part.isGap).map((part) => ({ left: part.left, width: part.width, text: duration((part.until - part.from) / 1000) })) };
}

/** Overlapping spans as one, within the view. @param {number[][]} spans @param {View} view */
function merged(spans, view) {
  /** @type {number[][]} */
  const all = [];
  for (const [start, end] of spans.map(([from, until]) => [Math.max(from, view.from), Math.min(until, view.until)]).filter(([from, until]) => from <= until).sort((one, other) => one[0] - other[0])) {
    const last = all.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else all.push([start, end]);
  }
  return all;
}

/** The view as pieces in which something works, and gaps between them. @param {number[][]} busy @param {View} view */
function piecesOf(busy, view) {
  const pieces = [];
  let at = view.from;
  for (const [from, until] of busy) {
    if (from > at) pieces.push({ from: at, until: from, isGap: true });
    if (until > from) pieces.push({ from, until, isGap: false });
    at = Math.max(at, until);
  }
  if (view.until > at) pieces.push({ from: at, until: view.until, isGap: true });
  return pieces;
}

/** Ticks with the time since the start of the view. On a shortened axis each wide part has one at its start and at its end. @param {Part[]} parts @param {View} view */
function ticksOf(parts, view) {
  const after = (/** @type {number} */ at) => duration((at - view.from) / 1000);
  if (parts.some((part) => part.isGap)) {
    return parts.filter((part) => !part.isGap && part.width > 0.08)
      .flatMap((part) => [{ left: part.left, text: after(part.from) }, ...(part.width > 0.2 ? [{ left: part.left + part.width, text: after(part.until), isEnd: true }] : [])]);
  }
  return Array.from({ length: TICKS + 1 }, (_, tick) => ({ left: tick / TICKS, isEnd: tick === TICKS, text: after(view.from + ((view.until - view.from) * tick) / TICKS) }));
}

/** A view around a band, with a margin. @param {Row} row @returns {View} */
export function around({ from, until }) {
  const margin = Math.max((until - from) * 0.05, 1);
  return { from: from - margin, until: until + margin };
}
