// The lines of a log, newest last. Blocks far out of sight cost no layout. `follow` keeps the end in sight.

import { html, useLayoutEffect, useMemo, useRef } from "../core/dom.js";
import { clock, iso } from "../core/format.js";
import { LongText } from "./code.js";

const BLOCK = 100; // lines that are rendered together
const KEPT = 5000;
const LINE_CUT = 2000;

/** @typedef {{id?: string, timestamp?: number, level?: string, message: string}} LogLine */

/** @param {{lines: LogLine[], follow?: boolean, label?: string, empty?: any, height?: string}} props */
export function LogView({ lines, follow = true, label = "Log", empty = "No log lines.", height }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const isAtEnd = useRef(true);
  const blocks = useBlocks(lines);
  useLayoutEffect(() => {
    if (follow && isAtEnd.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines, follow]);
  const scrolled = () => {
    const it = box.current;
    if (it) isAtEnd.current = it.scrollHeight - it.scrollTop - it.clientHeight < 40;
  };
  return html`
    <div class="log" role="log" aria-label=${label} aria-live="off" tabindex="0" ref=${box} onScroll=${scrolled} style=${height ? { maxHeight: height } : undefined}>
      ${lines.length === 0 && html`<p class="quiet">${empty}</p>`}
      ${blocks.map((block) => html`<${Block} key=${block.number} lines=${block.lines} />`)}
    </div>`;
}

/** The lines in blocks. A block with the same lines stays the same object. @param {LogLine[]} lines */
function useBlocks(lines) {
  const kept = useRef(/** @type {Map<string, {number: string, lines: LogLine[]}>} */ (new Map()));
  return useMemo(() => {
    const newest = lines.slice(-KEPT);
    const before = kept.current;
    const blocks = [];
    for (let at = 0; at < newest.length; at += BLOCK) {
      const part = newest.slice(at, at + BLOCK);
      const number = part[0].id ?? String(at);
      const old = before.get(number);
      const isOld = old && old.lines.length === part.length && old.lines.at(-1) === part.at(-1);
      blocks.push(isOld ? old : { number, lines: part });
    }
    kept.current = new Map(blocks.map((block) => [block.number, block]));
    return blocks;
  }, [lines]);
}

/** @param {{lines: LogLine[]}} props */
function Block({ lines }) {
  const drawn = useMemo(() => lines.map((line, at) => html`<${LineView} key=${line.id ?? at} line=${line} />`), [lines]);
  return html`<div class="log-block">${drawn}</div>`;
}

/** @param {{line: LogLine}} props */
function LineView({ line }) {
  const level = line.level ?? "INFO";
  return html`<div class=${`log-line ${level.toLowerCase()}`}>
    ${line.timestamp !== undefined && html`<time title=${iso(line.timestamp)}>${clock(line.timestamp)}</time>`}
    ${level !== "INFO" && html`<b>${level}</b> `}<span><${LongText} text=${line.message} limit=${LINE_CUT} /></span></div>`;
}
