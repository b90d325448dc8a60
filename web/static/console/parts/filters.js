// Parses the text of filters into parameters of the API, and lists the periods to choose from.

export const PERIODS = [
  { value: "", label: "Any time" },
  { value: "15m", label: "Last 15 minutes" },
  { value: "1h", label: "Last hour" },
  { value: "1d", label: "Last day" },
  { value: "7d", label: "Last week" },
  { value: "30d", label: "Last 30 days" },
];
/** @type {Record<string, number>} */
const SECONDS = { m: 60, h: 3_600, d: 86_400 };

/**
 * The start of a period (`15m`, `7d`, or a time) in ISO 8601; undefined where there is none.
 * @param {string | undefined} period
 * @param {number} [now] milliseconds
 * @returns {string | undefined}
 */
export function since(period, now = Date.now()) {
  if (!period) return undefined;
  const named = /^(\d{1,6})([mhd])$/.exec(period);
  if (named) return new Date(now - Number(named[1]) * SECONDS[named[2]] * 1000).toISOString();
  const at = Date.parse(period);
  return Number.isNaN(at) ? undefined : new Date(at).toISOString();
}

/**
 * A filter as an object: JSON, or `key=value` parts with commas between them, `a.b=1` for what is inside. A value that is
 * JSON (`3`, `true`, `"3"`) is meant as such, other text as it is. Throws what is wrong, in words.
 * @param {string | undefined} text
 * @returns {Record<string, unknown> | undefined}
 */
export function filterOf(text) {
  const said = (text ?? "").trim();
  if (!said) return undefined;
  if (said.startsWith("{")) return jsonObject(said);
  /** @type {Record<string, any>} */
  const found = {};
  for (const part of parts(said)) {
    const at = part.indexOf("=");
    if (at < 1) throw new Error(`"${part.slice(0, 60)}" is neither key=value nor JSON`);
    place(found, part.slice(0, at).trim().split("."), valueOf(part.slice(at + 1).trim()));
  }
  return found;
}

/**
 * A filter of runs by feedback: `key`, `key<0.5` or `key>=4`.
 * @param {string | undefined} text
 * @returns {Record<string, unknown> | undefined}
 */
export function feedbackOf(text) {
  const said = (text ?? "").trim();
  if (!said) return undefined;
  const [, key, sign, number] = /^(.+?)(<|>=)([+-]?\d+(?:\.\d+)?)$/s.exec(said) ?? [];
  if (!key) return { key: said };
  return { key, [sign === "<" ? "below" : "at_least"]: Number(number) };
}

/**
 * A filter of runs by feedback as the text that `feedbackOf` reads.
 * @param {Record<string, any>} filter
 */
export function feedbackText({ key, below, at_least }) {
  return key + (below == null ? "" : `<${below}`) + (at_least == null ? "" : `>=${at_least}`);
}

/** @param {string} text */
function jsonObject(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${/** @type {Error} */ (error).message}`);
  }
  return value;
}

/** Splits at commas that are not within quotes or brackets. @param {string} text */
function parts(text) {
  const found = text.match(/(?:"(?:\\.|[^"\\])*"|\[[^\]]*\]|[^,])+/g) ?? [];
  return found.map((part) => part.trim()).filter(Boolean);
}

/** @param {Record<string, any>} object @param {string[]} path @param {unknown} value */
function place(object, path, value) {
  const [key, ...rest] = path;
  if (!rest.length) Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true });
  else {
    if (!Object.hasOwn(object, key)) place(object, [key], {});
    place(object[key], rest, value);
  }
}

/** @param {string} text */
function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
