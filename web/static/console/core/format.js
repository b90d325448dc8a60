// Numbers, times, names and texts as people read them.

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const NUMBER = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
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

/** A duration: `120 ms`, `3.2 s`, `4 min 5 s`. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return NOTHING;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < MINUTE) return `${Math.round(seconds)} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ${Math.floor(seconds % MINUTE)} s`;
  if (seconds < DAY) return `${Math.floor(seconds / HOUR)} h ${Math.floor((seconds % HOUR) / MINUTE)} min`;
  return `${Math.floor(seconds / DAY)} d ${Math.floor((seconds % DAY) / HOUR)} h`;
}

/** The seconds between two times; null unless both are known. @param {string | null} from @param {string | null} to */
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

/** A fraction from 0 to 1 as a percentage. @param {number | null | undefined} part */
export const percent = (part) => (part === null || part === undefined || Number.isNaN(part) ? NOTHING : `${(part * 100).toFixed(part < 0.1 && part > 0 ? 1 : 0)} %`);

// Names: how ids, threads, runs, revisions and assistants are written everywhere

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const TITLE_CHARACTERS = 120;

/**
 * The short form of an id: the last 8 characters of a UUID, which are random. Its first characters are a time, so ids of the same minute begin
 * alike. Of other ids, such as a commit's hash, the first 8 characters.
 * @param {string | null | undefined} id
 */
export const short = (id) => (!id ? NOTHING : id.length <= 12 ? id : UUID.test(id) ? id.slice(-8) : id.slice(0, 8));

/** Whether a text is a complete UUID. @param {string} value */
export const isUuid = (value) => UUID.test(value);

/**
 * The title of a thread, which the service returns as `title` for `include: "title"` and as `extracted.title` for `extract: THREAD_TITLE`.
 * A thread without one is called by its short id.
 * @param {{thread_id: string, title?: string, extracted?: Record<string, any>, metadata?: Record<string, unknown>}} thread
 */
export function threadTitle({ thread_id, title, extracted, metadata }) {
  const given = [metadata?.title, title, extracted?.title].find((each) => typeof each === "string" && each.trim());
  return given ? text(String(given).trim(), TITLE_CHARACTERS) : `Thread ${short(thread_id)}`;
}

/** The `extract` of a thread search that returns titles instead of whole values. */
export const THREAD_TITLE = { title: "title" };

/** The name of an assistant: its own, else its graph's. @param {{name?: string | null, graph_id?: string | null} | null | undefined} assistant */
export const assistantName = (assistant) => text(assistant?.name || assistant?.graph_id || "Untitled", 60);

/**
 * The name of a run: its assistant and the time of its creation. Without the assistant's record, its graph stands in.
 * @param {Record<string, any>} run
 * @param {{name?: string | null, graph_id?: string | null} | null} [assistant]
 */
export const runName = (run, assistant) => `${assistantName(assistant ?? { graph_id: run.metadata?.graph_id ?? "Run" })} · ${moment(run.created_at)}`;

/** The name of a revision: `v3`. @param {number | null | undefined} number */
export const revisionName = (number) => (number ? `v${number}` : NOTHING);

/** A rate per minute. @param {number} n */
export const rate = (n) => (n >= 10 ? count(Math.round(n)) : n > 0 && n < 0.01 ? "< 0.01" : String(Number(n.toFixed(2))));

/** Any value on one line, shortened to `limit` characters. @param {any} value */
export function text(value, limit = 200) {
  const whole = typeof value === "string" ? value.slice(0, limit * 2) : (JSON.stringify(value) ?? NOTHING);
  const line = plain(whole.slice(0, limit * 2)).replace(/\s+/g, " ");
  return line.length > limit ? `${line.slice(0, limit - 1)}…` : line;
}

/** A text without terminal escapes and text-direction marks; other control characters become visible symbols. @param {string} value */
export function plain(value) {
  return value
    .replace(/\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]/g, "")
    .replace(/[\x00-\x08\x0b-\x1f\x7f]/g, (char) => (char === "\r" ? "" : char === "\x7f" ? "␡" : String.fromCharCode(0x2400 + char.charCodeAt(0))))
    .replace(/[\u202a-\u202e\u2066-\u2069]/g, "�");
}

/** A time in ISO 8601, in UTC. @param {string | number | null | undefined} at */
export function iso(at) {
  const time = at === null || at === undefined ? NaN : new Date(at).getTime();
  return Number.isNaN(time) ? "" : new Date(time).toISOString();
}

/**
 * A time as part of a name: `14:03:21` today, `24 Nov 14:03` this year, else `24 Nov 2025 14:03`, in the browser's time zone.
 * @param {string | number | null | undefined} at @param {number} [now]
 */
export function moment(at, now = Date.now()) {
  const time = new Date(at ?? NaN), today = new Date(now);
  if (Number.isNaN(time.getTime())) return NOTHING;
  if (time.toDateString() === today.toDateString()) return clock(time.getTime());
  const year = time.getFullYear() === today.getFullYear() ? "" : ` ${time.getFullYear()}`;
  return `${time.getDate()} ${MONTHS[time.getMonth()]}${year} ${clock(time.getTime()).slice(0, 5)}`;
}

/** The time of day in the browser's time zone: `14:03:21`. @param {string | number} at */
export const clock = (at) => new Date(at).toLocaleTimeString("en-GB", { hour12: false });
