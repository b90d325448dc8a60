// The events of a run. They are collected outside of the components and rendered at most once per frame.

import { isAborted } from "../core/api.js";
import { html, signal, useCallback, useEffect, useMemo, useState } from "../core/dom.js";
import { clock, count, plain } from "../core/format.js";
import { ErrorBox, Json } from "./index.js";
import { Windowed } from "./windowed.js";

/** @typedef {{number: number, event: string, data: any, at: number | null}} LogEvent */

const ROW_HEIGHT = 26;
const KEPT = 20_000;
const DROPPED_AT_ONCE = 2_000;
const DRAW_EVERY_MS = 100;
const PREVIEW = 240;
const REPLAYED_MS = 1_000; // earlier events were stored before, so their times are unknown

/**
 * Events collected from a stream. `version` changes when there is something to render.
 * @param {(signal: AbortSignal) => AsyncIterable<{id: string, event: string, data: any}>} open
 * @param {{isLive: boolean}} options live events have their time of arrival; stored events have no time
 */
export function createLog(open, { isLive }) {
  /** @type {LogEvent[]} */
  const events = [];
  /** @type {Set<string>} */
  const names = new Set();
  const version = signal(0);
  const state = signal(/** @type {{isOpen: boolean, error: any}} */ ({ isOpen: true, error: null }));
  const leaving = new AbortController();
  const begun = Date.now();
  let number = 0;
  let dropped = 0;
  let timer = 0;

  const draw = () => {
    timer = 0;
    version.value++;
  };
  const follow = async () => {
    try {
      for await (const { event, data } of open(leaving.signal)) {
        events.push({ number: ++number, event, data, at: isLive && Date.now() - begun > REPLAYED_MS ? Date.now() : null });
        names.add(event);
        if (events.length > KEPT + DROPPED_AT_ONCE) {
          events.splice(0, DROPPED_AT_ONCE);
          dropped += DROPPED_AT_ONCE;
        }
        timer ||= window.setTimeout(draw, DRAW_EVERY_MS);
      }
      state.value = { isOpen: false, error: null };
    } catch (error) {
      if (!isAborted(error)) state.value = { isOpen: false, error };
    }
  };
  void follow();
  return {
    events, names, version, state,
    /** The number of oldest events that were dropped. */
    dropped: () => dropped,
    leave: () => {
      leaving.abort();
      clearTimeout(timer);
    },
  };
}

/**
 * The events of a log, optionally of one name only.
 * @param {{log: ReturnType<typeof createLog>, isLive: boolean}} props
 */
export function EventLog({ log, isLive }) {
  const [name, setName] = useState("");
  const [opened, setOpened] = useState(/** @type {LogEvent | null} */ (null));
  const [follows, setFollows] = useState(isLive);
  const version = log.version.value;
  const { isOpen, error } = log.state.value;
  const shown = useMemo(() => (name ? log.events.filter((event) => event.event === name) : log.events), [name, version]);
  useEffect(() => setFollows(isLive), [isLive]);
  const place = opened ? shown.indexOf(opened) : -1;
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !shown.length) return;
    event.preventDefault();
    setFollows(false);
    setOpened(shown[Math.min(Math.max(place + step, 0), shown.length - 1)]);
  };
  const options = useMemo(() => [...log.names].slice(0, 100).map((each) => html`<option key=${each} value=${each}>${plain(each.slice(0, 100))}</option>`), [log.names.size]);
  const open = useCallback((/** @type {LogEvent} */ event) => {
    setFollows(false);
    setOpened(event);
  }, []);
  /** @type {WeakMap<LogEvent, {isOpen: boolean, row: any}>} */
  const drawn = useMemo(() => new WeakMap(), [name]);
  const render = (/** @type {number} */ at) => {
    const event = shown[at];
    const isOpen = event === opened;
    const known = drawn.get(event);
    if (known?.isOpen === isOpen) return known.row; // the same virtual node, so preact skips it
    const row = html`<${Row} key=${event.number} event=${event} isOpen=${isOpen} onOpen=${open} />`;
    drawn.set(event, { isOpen, row });
    return row;
  };
  return html`
    <div class="event-tools">
      <span aria-live="off">${count(shown.length)} ${shown.length === 1 ? "event" : "events"}${log.dropped() ? `, ${count(log.dropped())} earlier ones are not held` : ""}</span>
      <select aria-label="Events of one kind" value=${name} onChange=${(/** @type {Event} */ event) => setName(/** @type {HTMLSelectElement} */ (event.currentTarget).value)}>
        <option value="">All kinds</option>
        ${options}
      </select>
      ${isOpen && isLive && html`<label><input type="checkbox" checked=${follows} onChange=${() => setFollows(!follows)} /> Follow</label> <span class="live">live</span>`}
    </div>
    ${error && html`<${ErrorBox} error=${error} />`}
    ${!shown.length && html`<p class="quiet">${isOpen ? "No events yet." : "No events are kept. Events expire some minutes after the end of a run. Its results are in the thread."}</p>`}
    <div class=${opened ? "event-split" : ""}>
      ${shown.length > 0 && html`<${Windowed} class="events" role="listbox" label="Events" count=${shown.length} rowHeight=${ROW_HEIGHT} render=${render} follow=${follows && isOpen} onLeave=${() => setFollows(false)} active=${place} onKeyDown=${onKeyDown} />`}
      ${opened && html`
        <section class="event-detail" aria-label="Event">
          <header><strong>${plain(opened.event.slice(0, 200))}</strong> <button type="button" class="plain" onClick=${() => setOpened(null)}>Close</button></header>
          <${Json} value=${opened.data} collapsed=${2} label="Event's data" />
        </section>`}
    </div>`;
}

/** @param {{event: LogEvent, isOpen: boolean, onOpen: (event: LogEvent) => void}} props */
function Row({ event, isOpen, onOpen }) {
  return html`
    <div class=${isOpen ? "event chosen" : "event"} role="option" aria-selected=${isOpen} onClick=${() => onOpen(event)}>
      <span class="event-time">${event.at === null ? event.number : clock(event.at)}</span>
      <span class="event-name">${plain(event.event.slice(0, 80))}</span>
      <span class="event-data">${preview(event.data)}</span>
    </div>`;
}

/**
 * The beginning of a value on one line. A large value is not serialized whole.
 * @param {any} value
 * @returns {string}
 */
export function preview(value) {
  return plain(begin(value, PREVIEW)).replace(/\s+/g, " ").slice(0, PREVIEW);
}

/** @param {any} value @param {number} room @returns {string} */
function begin(value, room) {
  if (typeof value === "string") return JSON.stringify(value.slice(0, room));
  if (typeof value !== "object" || value === null) return String(value);
  const isList = Array.isArray(value);
  let text = isList ? "[" : "{";
  const keys = isList ? value.slice(0, 40).map((_, at) => at) : Object.keys(value).slice(0, 40);
  for (const [at, key] of keys.entries()) {
    if (text.length > room) return `${text}…`;
    const name = isList ? "" : `${String(key).slice(0, 60)}: `;
    text += `${at ? ", " : ""}${name}${begin(value[key], room - text.length)}`;
  }
  return text + (isList ? "]" : "}");
}
