/**
 * Masking of a deployment's secret values in its errors. The runner masks log lines.
 *
 * A value is masked in each form in which a program may print it: plain, as JSON and JavaScript quote it, percent-encoded
 * in an address, and in base64.
 */

const { Buffer } = globalThis;
const { stringify } = JSON;

const MASK = "***";
const SHORTEST = 6; // characters of a masked secret; masking shorter ones would make texts unreadable
const LONGEST = 128; // characters of one pattern; a longer value is matched in pieces

let mask = (text) => text;

/**
 * Set the values that `masked` masks in this process.
 *
 * @param {string[]} values
 */
export function configure(values) {
  const lines = values.flatMap((value) => [value, ...value.split(/\r?\n/)]).map((line) => line.trim());
  const forms = new Set(lines.flatMap(pieces).flatMap(formsOf));
  const patterns = [...forms].sort((one, other) => other.length - one.length).map(escaped);
  if (patterns.length) {
    const pattern = new RegExp(patterns.join("|"), "g");
    mask = (text) => text.replace(pattern, MASK);
  }
}

/**
 * Return the text of an error with the deployment's secret values masked.
 *
 * @param {string} text
 */
export function masked(text) {
  return mask(text);
}

/** Split a value into pieces of about the same length, so that no piece is too short to be masked. */
function pieces(line) {
  const count = Math.ceil(line.length / LONGEST);
  const parts = Array.from({ length: count }, (_, n) =>
    line.slice(Math.floor((n * line.length) / count), Math.floor(((n + 1) * line.length) / count)),
  );
  return parts.filter((part) => part.length >= SHORTEST);
}

function formsOf(value) {
  const wellFormed = value.toWellFormed();
  const quoted = stringify(value).slice(1, -1);
  const twice = stringify(quoted).slice(1, -1);
  const encoded = encodeURIComponent(wellFormed);
  const lowerCase = encoded.replace(/%../g, (digits) => digits.toLowerCase());
  return [
    value, quoted, twice, value.replaceAll("'", "\\'"), encoded, lowerCase, encodeURI(wellFormed),
    encoded.replaceAll("%20", "+"), ...base64Forms(value),
  ];
}

/** Return the base64 texts that a value produces at each offset of the encoded bytes. */
function base64Forms(value) {
  const raw = Buffer.from(value);
  const forms = [[0, 0], [1, 2], [2, 3]].flatMap(([before, first]) => {
    const last = Math.floor((before + raw.length) / 3) * 4;
    const padded = Buffer.concat([Buffer.alloc(before), raw]);
    return [padded.toString("base64"), padded.toString("base64url")].map((text) => text.slice(first, last));
  });
  return forms.filter((form) => form.length >= SHORTEST);
}

function escaped(form) {
  return form.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");
}
