// Figures, times and texts as people read them.

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const NOTHING = "–";

/** How long ago: `3 min ago`, `in 2 h`. @param {string | number | null | undefined} at @param {number} [now] */
export function ago(at, now = Date.now()) {
  const time = at === null || at === undefined ? NaN : new Date(at).getTime();
  if (Number.isNaN(time)) return NOTHING;
  const seconds = (now - time) / 1000;
  const size = Math.abs(seconds);
  if (size < 5) return "now";
  const text = size < MINUTE ? `${Math.round(size)} s` : size < HOUR ? `${Math.round(size / MINUTE)} min`
    : size < 2 * DAY ? `${Math.round(size / HOUR)} h` : `${Math.round(size / DAY)} days`;
  return seconds < 0 ? `in ${text}` : `${text} ago`;
}

/** A span of time: `120 ms`, `3.2 s`, `4 min 5 s`. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < MINUTE) return `${Math.round(seconds)} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ${Math.floor(seconds % MINUTE)} s`;
  if (seconds < DAY) return `${Math.floor(seconds / HOUR)} h ${Math.floor((seconds % HOUR) / MINUTE)} min`;
  return `${Math.floor(seconds / DAY)} d ${Math.floor((seconds % DAY) / HOUR)} h`;
}

/** Between two times, in seconds; null unless both are known. @param {string | null} from @param {string | null} to */
export const between = (from, to) => (from && to ? (new Date(to).getTime() - new Date(from).getTime()) / 1000 : null);

/** @param {number | null | undefined} n */
export const count = (n) => (n === null || n === undefined ? NOTHING : Math.abs(n) < 100_000 ? NUMBER.format(n) : COMPACT.format(n));

/** @param {number | null | undefined} n */
export function bytes(n) {
  if (n === null || n === undefined) return NOTHING;
  if (n < 1000) return `${n} B`;
  const power = Math.min(4, Math.floor(Math.log10(n) / 3));
  return `${(n / 1000 ** power).toFixed(n / 1000 ** power < 10 ? 1 : 0)} ${["", "kB", "MB", "GB", "TB"][power]}`;
}

/** @param {number | null | undefined} n */
export const money = (n) => (n === null || n === undefined ? NOTHING : n !== 0 && Math.abs(n) < 0.01 ? `$${n.toPrecision(2)}` : `$${n.toFixed(2)}`);

/** A part from 0 to 1. @param {number | null | undefined} part */
export const percent = (part) => (part === null || part === undefined || Number.isNaN(part) ? NOTHING : `${(part * 100).toFixed(part < 0.1 && part > 0 ? 1 : 0)} %`);

/**
 * A part of an id that tells it from others: the last characters of a UUID, for the first ones are its time and the same for
 * all of a minute; of others the first ones.
 * @param {string | null | undefined} id
 */
export const short = (id) => (!id ? NOTHING : id.length <= 12 ? id : id.includes("-") ? `…${id.slice(-8)}` : id.slice(0, 8));

/** How often something happens; of what is rarer than is written, that it is. @param {number} n a minute */
export const rate = (n) => (n >= 10 ? count(Math.round(n)) : n > 0 && n < 0.01 ? "< 0.01" : String(Number(n.toFixed(2))));

/** Any value on one line, cut. @param {any} value */
export function text(value, limit = 200) {
  const whole = typeof value === "string" ? value.slice(0, limit * 2) : (JSON.stringify(value) ?? NOTHING);
  const line = plain(whole.slice(0, limit * 2)).replace(/\s+/g, " ");
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
}

/** A text without terminal escapes, its other control characters as pictures. @param {string} value */
export function plain(value) {
  return value
    .replace(/\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]/g, "")
    .replace(/[\x00-\x08\x0b-\x1f\x7f]/g, (char) => (char === "\r" ? "" : char === "\x7f" ? "␡" : String.fromCharCode(0x2400 + char.charCodeAt(0))))
    .replace(/[\u202a-\u202e\u2066-\u2069]/g, "�");
}

/** The whole time, in UTC. @param {string | number | null | undefined} at */
export function iso(at) {
  const time = at === null || at === undefined ? NaN : new Date(at).getTime();
  return Number.isNaN(time) ? "" : new Date(time).toISOString();
}

/** The time of day here. @param {string | number} at */
export const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });
