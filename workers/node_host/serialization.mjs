/**
 * Serialization of any value that a graph produces to JSON on one line. The encoder never throws.
 *
 * The fast path is a copy of the value with plain objects, arrays and texts only.
 */

import { parse, stringify } from "./json.mjs";
import { masked } from "./masking.mjs";
import { isMessage, record, shortRecord } from "./messages.mjs";

const { isArray } = Array;
const { defineProperty, getPrototypeOf, keys, prototype } = Object;
const { Buffer } = globalThis;
const { from } = Buffer;
const { isView } = ArrayBuffer;

// Depth to which nested values are followed. Deeper values become text.
const MAX_DEPTH = 100;
const CIRCLE = "[Circular]";
const UNREADABLE = "the error cannot be read: its own code fails";
const HALF_PAIR = /\\ud[89a-f]/i; // a half of a surrogate pair, which `stringify` escapes

/**
 * Encode any value as JSON.
 *
 * @param {unknown} value
 */
export function dumps(value) {
  return encode(value, record);
}

/** Encode any value as JSON for protocol v2: like `dumps`, with messages in short form. */
export function shortDumps(value) {
  return encode(value, shortRecord);
}

/**
 * Decode a JSON document.
 *
 * @param {Buffer | string} data
 */
export function loads(data) {
  return parse(typeof data === "string" ? data : data.toString());
}

/** Remove U+0000 from a JSON document, because PostgreSQL's jsonb cannot store it. */
export function withoutNul(text) {
  return text.includes("\\u0000") ? stringify(mapped(parse(text), (part) => part.replaceAll("\0", ""))) : text;
}

/** Return a copy of any value that consists of plain objects, arrays, texts, numbers, booleans and null. */
export function plain(value) {
  return shape(value, record, []) ?? null;
}

/** Return an error's class and text, with secrets masked. */
export function errorRecord(error) {
  return { error: masked(errorName(error)), message: errorText(error) };
}

/** Return the text of an error, or of a library's record of one, with secrets masked. Never throws. */
export function errorText(error) {
  const isObject = typeof error === "object" && error !== null;
  try {
    return masked(textOf(isObject && "message" in error ? error.message : error));
  } catch {
    return UNREADABLE;
  }
}

/** Return the name of an error's class. Never throws. */
export function errorName(error) {
  try {
    const name = typeof error === "object" && error !== null ? textOf(error.name ?? "Error") : "Error";
    const cls = error?.constructor?.name;
    const shown = name === "Error" && typeof cls === "string" && cls !== "Object" && cls ? cls : name;
    return shown.replace(/^\$/, ""); // zod's `$ZodError`
  } catch {
    return "Error";
  }
}

/** Return the text of a value, or its type's name if its own code fails. */
export function textOf(value) {
  try {
    return String(value);
  } catch {
    return `<${typeof value}>`;
  }
}

function encode(value, message) {
  const text = stringify(shape(value, message, []) ?? null);
  return HALF_PAIR.test(text) ? stringify(mapped(parse(text), (part) => part.toWellFormed())) : text;
}

/**
 * Return the plain copy of a value; undefined for a value that JSON leaves out.
 *
 * @param {any} value
 * @param {(message: any) => object} message converts a message
 * @param {object[]} around the objects that contain the value
 */
function shape(value, message, around) {
  switch (typeof value) {
    case "string":
    case "boolean":
      return value;
    case "number":
      return Number.isFinite(value) ? value : null;
    case "bigint":
      return value.toString();
    case "object":
      break;
    default:
      return undefined;
  }
  if (value === null) {
    return null;
  }
  if (around.includes(value)) {
    return CIRCLE;
  }
  if (around.length >= MAX_DEPTH) {
    return textOf(value).slice(0, 1000);
  }
  around.push(value);
  try {
    return objectShape(value, message, around);
  } catch {
    return textOf(value); // a getter or a `toJSON` of the project's own object failed
  } finally {
    around.pop();
  }
}

function objectShape(value, message, around) {
  if (isArray(value)) {
    const items = new Array(value.length);
    for (let position = 0; position < value.length; position++) {
      items[position] = shape(value[position], message, around) ?? null;
    }
    return items;
  }
  const kind = getPrototypeOf(value);
  if (kind === prototype || kind === null) {
    return entries(value, message, around);
  }
  if (isMessage(value)) {
    return entries(message(value), message, around);
  }
  if (value instanceof Error) {
    return errorRecord(value);
  }
  if (value instanceof Map) {
    const object = {};
    for (const [key, item] of value) {
      set(object, textOf(key), shape(item, message, around));
    }
    return object;
  }
  if (value instanceof Set) {
    return Array.from(value, (item) => shape(item, message, around) ?? null);
  }
  if (value instanceof Date) {
    return Number.isNaN(value.getTime()) ? null : value.toISOString();
  }
  if (value instanceof RegExp) {
    return value.toString();
  }
  if (isView(value)) {
    return from(value.buffer, value.byteOffset, value.byteLength).toString("base64");
  }
  if (value instanceof ArrayBuffer) {
    return from(value).toString("base64");
  }
  if (value.lg_name === "Send") {
    return { node: value.node, args: shape(value.args, message, around) ?? null };
  }
  if (value.lg_name === "Command") {
    const { graph = null, update = null, resume = null, goto } = value;
    return entries({ graph, update, resume, goto }, message, around);
  }
  if (typeof value.toJSON === "function") {
    return shape(value.toJSON(), message, around);
  }
  return entries(value, message, around);
}

function entries(value, message, around) {
  const object = {};
  for (const key of keys(value)) {
    const item = shape(value[key], message, around);
    if (item !== undefined) {
      set(object, key, item);
    }
  }
  return object;
}

/** Set a property. An assignment to `__proto__` would change the object's prototype instead. */
export function set(object, key, value) {
  if (key === "__proto__") {
    defineProperty(object, key, { value, enumerable: true, writable: true, configurable: true });
  } else {
    object[key] = value;
  }
}

/** Return a plain value with all its texts and keys converted. */
function mapped(value, convert) {
  if (typeof value === "string") {
    return convert(value);
  }
  if (isArray(value)) {
    return value.map((item) => mapped(item, convert));
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  const object = {};
  for (const key of keys(value)) {
    set(object, convert(key), mapped(value[key], convert));
  }
  return object;
}
