/**
 * The serializer of checkpoints. It replaces the library's, which restores objects that a client's document describes, and
 * with them the values of environment variables.
 *
 * A value is JSON. A value that JSON does not know is a *tag*: an object with the key `~`, whose value names the kind. A
 * tag is written for the class of a value, never for its fields, and an object of the project or of a client that has the
 * key `~` is itself tagged. A document from a client therefore stays a document.
 */

import { parse, stringify } from "../json.mjs";
import { classOf, isMessage } from "../messages.mjs";
import { set } from "../serialization.mjs";

const { Buffer } = globalThis;
const { isArray } = Array;
const { isFinite } = Number;
const { getPrototypeOf, is, keys, prototype } = Object;
const hasOwn = Object.hasOwn;

/** The type of data that this host writes: its language, and the version of the format. */
export const TYPE = "javascript/1";
const PYTHON = new Set(["null", "bytes", "bytearray", "msgpack", "json", "pickle"]);
const TAG = "~";

const MESSAGES = new Set(
  ["AI", "Human", "System", "Tool", "Function", "Chat"].flatMap((kind) => [
    `${kind}Message`,
    `${kind}MessageChunk`,
  ]),
).add("RemoveMessage");
// Fields of a message that its class sets by itself.
const OF_CLASS = new Set([
  "lc_kwargs", "lc_namespace", "lc_serializable", "lc_direct_tool_output", "lc_aliases", "type",
]);
const ARRAYS = new Map(
  [
    Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array, Float32Array,
    Float64Array, BigInt64Array, BigUint64Array,
  ].map((cls) => [cls.name, cls]),
);

/** A checkpoint contains data that must not be restored. */
class CheckpointRefused extends Error {
  name = "CheckpointRefused";
}

/** A state contains a value that cannot be stored. */
class NotStorable extends Error {
  name = "NotStorable";
}

/** Throw CheckpointRefused unless this host can read data of a type. */
export function checkType(type) {
  if (type === TYPE) {
    return;
  }
  if (PYTHON.has(type)) {
    throw new CheckpointRefused(
      "this thread's checkpoints were written by Python graphs: continue it with a revision of those, or begin a new" +
        " thread",
    );
  }
  throw new CheckpointRefused(`the checkpoint holds data of the kind '${type}', which this server did not write`);
}

/** Serializes values, and restores them with the classes of a project's libraries. */
export class Serializer {
  #library;

  /** @param {import("../libraries.mjs").Library} library */
  constructor(library) {
    this.#library = library;
  }

  /**
   * Return a value as JSON. Throws NotStorable.
   *
   * @param {unknown} value
   * @param {string} channel for the error's text
   */
  dumps(value, channel) {
    try {
      return stringify(tagged(value, []));
    } catch (error) {
      if (error instanceof NotStorable) {
        throw new NotStorable(`channel '${channel}' holds ${error.message}, which cannot be stored`);
      }
      if (error instanceof RangeError) {
        throw new NotStorable(`channel '${channel}' holds a value that is nested too deeply`);
      }
      throw error;
    }
  }

  /**
   * Restore a value from its JSON.
   *
   * @param {Buffer | string} text
   */
  loads(text) {
    return this.restored(parse(typeof text === "string" ? text : text.toString()));
  }

  /** Restore a value from its decoded JSON, which this may change. */
  restored(value) {
    if (typeof value !== "object" || value === null) {
      return value;
    }
    if (isArray(value)) {
      for (let position = 0; position < value.length; position++) {
        const item = value[position];
        if (typeof item === "object" && item !== null) {
          value[position] = this.restored(item);
        }
      }
      return value;
    }
    if (hasOwn(value, TAG)) {
      return this.#untagged(value);
    }
    return this.#entries(value);
  }

  #entries(value) {
    for (const key of keys(value)) {
      const item = value[key];
      if (typeof item === "object" && item !== null) {
        set(value, key, this.restored(item));
      }
    }
    return value;
  }

  #untagged(tag) {
    const content = tag.v;
    switch (tag[TAG]) {
      case "object":
        return this.#entries(content);
      case "undefined":
        return undefined;
      case "number":
        return Number(content);
      case "bigint":
        return BigInt(content);
      case "date":
        return new Date(content ?? NaN);
      case "map":
        return new Map(this.restored(content));
      case "set":
        return new Set(this.restored(content));
      case "regexp":
        return new RegExp(content[0], content[1]);
      case "error":
        return restoredError(content);
      case "buffer":
        return Buffer.from(content, "base64");
      case "array":
        return restoredArray(tag.of, content);
      case "message":
        return this.#message(tag.of, this.#entries(content));
      case "document":
        return new this.#library.documents.Document(this.#entries(content));
      case "send":
        return this.#send(content);
      case "snapshot":
        return new this.#library.checkpoint.DeltaSnapshot(this.restored(content));
      default:
        throw new CheckpointRefused(`the checkpoint holds a value of the kind '${tag[TAG]}'`);
    }
  }

  #message(name, fields) {
    if (!MESSAGES.has(name)) {
      throw new CheckpointRefused(`the checkpoint holds a message of the kind '${name}'`);
    }
    const message = new this.#library.messages[name](fields);
    if (fields.invalid_tool_calls?.length && !message.invalid_tool_calls?.length) {
      message.invalid_tool_calls = fields.invalid_tool_calls; // the constructor of chunks drops them
    }
    return message;
  }

  #send({ node, args, timeout }) {
    // The constructor would restore objects that the argument describes.
    const send = new this.#library.langgraph.Send(node, null);
    send.args = this.restored(args);
    if (timeout !== undefined) {
      send.timeout = this.restored(timeout);
    }
    return send;
  }
}

function restoredError({ name, message }) {
  const error = new Error(message);
  error.name = name;
  error.stack = `${name}: ${message}`;
  return error;
}

function restoredArray(name, content) {
  const bytes = Uint8Array.from(Buffer.from(content, "base64"));
  return name === "ArrayBuffer" ? bytes.buffer : new /** @type {any} */ (ARRAYS.get(name))(bytes.buffer);
}

/**
 * Return a value with tags. Returns the value itself if JSON can represent all of it.
 *
 * @param {any} value
 * @param {object[]} around the objects that contain the value
 */
function tagged(value, around) {
  switch (typeof value) {
    case "string":
    case "boolean":
      return value;
    case "number":
      return isJson(value) ? value : { [TAG]: "number", v: is(value, -0) ? "-0" : String(value) };
    case "undefined":
      return { [TAG]: "undefined" };
    case "bigint":
      return { [TAG]: "bigint", v: value.toString() };
    case "object":
      break;
    default:
      throw new NotStorable(typeof value === "function" ? "a function" : "a symbol");
  }
  if (value === null) {
    return null;
  }
  if (around.includes(value)) {
    throw new NotStorable("an object that contains itself");
  }
  around.push(value);
  const result = taggedObject(value, around);
  around.pop();
  return result;
}

function isJson(number) {
  return isFinite(number) && !is(number, -0);
}

function taggedObject(value, around) {
  if (isArray(value)) {
    return items(value, around);
  }
  const kind = getPrototypeOf(value);
  if (kind === prototype || kind === null) {
    const result = entries(value, around);
    return hasOwn(value, TAG) ? { [TAG]: "object", v: result } : result;
  }
  if (isMessage(value) && MESSAGES.has(classOf(value))) {
    return { [TAG]: "message", of: classOf(value), v: fields(value, around) };
  }
  return tagOf(value, around) ?? taggedInstance(value, around);
}

/** Return the tag of an instance of a class that is stored; undefined for any other. */
function tagOf(value, around) {
  if (value instanceof Date) {
    return { [TAG]: "date", v: Number.isNaN(value.getTime()) ? null : value.toISOString() };
  }
  if (value instanceof Map) {
    return { [TAG]: "map", v: items([...value], around) };
  }
  if (value instanceof Set) {
    return { [TAG]: "set", v: items([...value], around) };
  }
  if (value instanceof RegExp) {
    return { [TAG]: "regexp", v: [value.source, value.flags] };
  }
  if (value instanceof Error) {
    return { [TAG]: "error", v: { name: String(value.name), message: String(value.message) } };
  }
  if (Buffer.isBuffer(value)) {
    return { [TAG]: "buffer", v: value.toString("base64") };
  }
  if (ArrayBuffer.isView(value) && ARRAYS.has(value.constructor.name)) {
    const bytes = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
    return { [TAG]: "array", of: value.constructor.name, v: bytes.toString("base64") };
  }
  if (value instanceof ArrayBuffer) {
    return { [TAG]: "array", of: "ArrayBuffer", v: Buffer.from(value).toString("base64") };
  }
  if (value.lg_name === "Send") {
    const { node, args, timeout } = value;
    const rest = timeout === undefined ? {} : { timeout: tagged(timeout, around) };
    return { [TAG]: "send", v: { node, args: tagged(args, around), ...rest } };
  }
  if (value.lg_name === "DeltaSnapshot") {
    return { [TAG]: "snapshot", v: tagged(value.value, around) };
  }
  if (value.constructor?.name === "Document" && typeof value.pageContent === "string") {
    return { [TAG]: "document", v: fields(value, around) };
  }
  return undefined;
}

/** Return another class's instance as a plain object, without its methods. */
function taggedInstance(value, around) {
  if (typeof value.toJSON === "function") {
    return tagged(value.toJSON(), around);
  }
  return tagged(Object.fromEntries(keys(value).map(/** @returns {[string, unknown]} */ (key) => [key, value[key]]).filter(isData)), around);
}

function isData([, item]) {
  return typeof item !== "function" && typeof item !== "symbol";
}

/** Return the fields of a message or document, without those that are not set. */
function fields(value, around) {
  const object = {};
  for (const key of keys(value)) {
    const item = value[key];
    if (item !== undefined && typeof item !== "function" && !OF_CLASS.has(key)) {
      object[key] = tagged(item, around);
    }
  }
  return object;
}

function items(list, around) {
  /** @type {unknown[] | null} */
  let changed = null;
  for (let position = 0; position < list.length; position++) {
    const item = list[position];
    const result = tagged(item, around);
    if (changed === null && (result !== item || !(position in list))) {
      changed = list.slice(0, position);
    }
    changed?.push(result);
  }
  return changed ?? list;
}

function entries(object, around) {
  const names = keys(object);
  /** @type {Record<string, unknown> | null} */
  let changed = null;
  for (let position = 0; position < names.length; position++) {
    const name = names[position];
    const item = object[name];
    const result = tagged(item, around);
    if (changed === null && result !== item) {
      changed = {};
      for (const earlier of names.slice(0, position)) {
        set(changed, earlier, object[earlier]);
      }
    }
    if (changed !== null) {
      set(changed, name, result);
    }
  }
  return changed ?? object;
}
