/**
 * Conversion of printed output and errors of user code to LOG frames with the id of the run.
 *
 * The output of one `console.log()` is one record, even if it has several lines. Three limits apply: bytes per record,
 * records per run, and records per second. A longer output becomes several records, cut between lines. One line reports
 * the number of dropped records.
 *
 * Stacks are for authors of graphs: they leave out the frames of this host and of LangGraph's loop.
 */

import path from "node:path";
import { fileURLToPath } from "node:url";

import { currentId } from "./current.mjs";
import * as frames from "./frames.mjs";
import { stringify } from "./json.mjs";
import { errorName, textOf } from "./serialization.mjs";

const { Buffer } = globalThis;
const { byteLength, from } = Buffer;
const { min } = Math;
const now = performance.now.bind(performance);

const MAX_CHARACTERS = 1_000_000; // of one output; splitting it into records blocks all other runs
const NOTE_CHARACTERS = 50; // of these, for the note that the rest was dropped
const MAX_RECORD_BYTES = 8 * 1024;
const MAX_LINES_PER_RUN = 10_000;
const LINES_PER_SECOND = 200;
const BURST_LINES = 2_000;
const REMEMBERED_RUNS = 4_096;
const STACK_LINES = 30;
const MAX_CAUSES = 10;

export const LOGGER = "runyard";
const HERE = path.dirname(fileURLToPath(import.meta.url));
// Frames between the host and a node of a graph, and frames of Node and of the loader of TypeScript.
const CALLERS = /node_modules\/(?:\.pnpm\/[^/]+\/node_modules\/)?@langchain\/(?:langgraph|core)\//;
const TOOLS = /\(?node:|\/tsx\/dist\/|\/esbuild\/lib\//;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\0-\x08\x0b-\x1f\x7f-\x9f]/g;

// Levels of the methods of `console` that print like `console.log` or `console.warn`.
const CONSOLE_LEVELS = { error: "ERROR", debug: "DEBUG" };

/** Sends log records within the limits of the run and of the process. */
export class Limiter {
  #connection;
  #lines = new Map();
  #tokens = BURST_LINES;
  #refilledAt = now();
  #dropped = 0;
  #partial = { stdout: new Map(), stderr: new Map() };
  /** @type {string | null} of the method of `console` that is printing */
  #level = null;

  /** @param {import("./connection.mjs").Connection} connection */
  constructor(connection) {
    this.#connection = connection;
  }

  /** Redirect stdout and stderr to the runner. */
  capture() {
    for (const name of ["stdout", "stderr"]) {
      process[name].write = (data, encoding, done) => {
        const callback = typeof encoding === "function" ? encoding : done;
        this.#print(name, typeof data === "string" ? data : textOfBytes(data));
        if (typeof callback === "function") {
          queueMicrotask(callback);
        }
        return true;
      };
    }
    for (const [name, level] of Object.entries(CONSOLE_LEVELS)) {
      const print = console[name].bind(console);
      console[name] = (...values) => {
        this.#level = level;
        try {
          print(...values);
        } finally {
          this.#level = null;
        }
      };
    }
  }

  /**
   * Send one record or count it as dropped. Without `id` it belongs to the current run.
   *
   * @param {string} level
   * @param {string} logger
   * @param {string} message
   * @param {string} [id]
   */
  emit(level, logger, message, id = currentId()) {
    for (const part of parts(clean(shortened(message)))) {
      this.#emit(level, logger, part, id);
    }
  }

  /** Send the incomplete lines of a run that has ended, and forget its count. */
  forget(id) {
    for (const name of ["stdout", "stderr"]) {
      this.#finishLine(name, id);
    }
    this.#lines.delete(id);
  }

  /** Send all incomplete lines, before the process ends. */
  finish() {
    for (const name of ["stdout", "stderr"]) {
      for (const id of [...this.#partial[name].keys()]) {
        this.#finishLine(name, id);
      }
    }
  }

  #print(name, text) {
    const id = currentId();
    const pending = (this.#partial[name].get(id) ?? "") + shortened(text);
    if (pending.endsWith("\n") || pending.length > MAX_RECORD_BYTES) {
      this.#partial[name].delete(id);
      this.#emitLine(name, pending, id);
    } else if (pending) {
      this.#partial[name].set(id, pending);
    }
  }

  #finishLine(name, id) {
    const pending = this.#partial[name].get(id);
    this.#partial[name].delete(id);
    this.#emitLine(name, pending ?? "", id);
  }

  #emitLine(name, text, id) {
    const message = text.replace(/^\n+|\n+$/g, "");
    if (message) {
      this.emit(this.#level ?? (name === "stdout" ? "INFO" : "WARNING"), name, message, id);
    }
  }

  #emit(level, logger, message, id) {
    const seen = this.#count(id);
    if (seen > MAX_LINES_PER_RUN) {
      if (seen === MAX_LINES_PER_RUN + 1) {
        this.#send(id, "WARNING", LOGGER, `more than ${MAX_LINES_PER_RUN} lines: dropped`);
      }
      return;
    }
    if (!this.#takeToken()) {
      this.#dropped++;
      return;
    }
    if (this.#dropped) {
      const text = `${this.#dropped} lines dropped: more than ${LINES_PER_SECOND} a second`;
      this.#dropped = 0;
      this.#send(id, "WARNING", LOGGER, text);
    }
    this.#send(id, level, logger, message);
  }

  #count(id) {
    if (id === frames.NOBODY) {
      return 0;
    }
    const seen = (this.#lines.get(id) ?? 0) + 1;
    this.#lines.set(id, seen);
    if (this.#lines.size > REMEMBERED_RUNS) {
      this.#lines.delete(this.#lines.keys().next().value);
    }
    return seen;
  }

  #takeToken() {
    const at = now();
    this.#tokens = Math.min(BURST_LINES, this.#tokens + ((at - this.#refilledAt) / 1000) * LINES_PER_SECOND);
    this.#refilledAt = at;
    if (this.#tokens < 1) {
      return false;
    }
    this.#tokens--;
    return true;
  }

  #send(id, level, logger, message) {
    this.#connection.send(frames.LOG, id, stringify({ level, message, logger }));
  }
}

/** Return the text of printed bytes. Converts no more than one output may have: a longer text might not fit into memory. */
function textOfBytes(data) {
  const size = min(data.byteLength, MAX_CHARACTERS - NOTE_CHARACTERS);
  const text = from(data.buffer, data.byteOffset, size).toString();
  return size === data.byteLength ? text : `${text}\n${data.byteLength - size} more bytes dropped`;
}

/** Cut a text that is too long for one output, between lines if possible. */
function shortened(text) {
  if (text.length <= MAX_CHARACTERS) {
    return text;
  }
  const most = MAX_CHARACTERS - NOTE_CHARACTERS;
  const lineEnd = text.lastIndexOf("\n", most);
  const kept = text.slice(0, lineEnd > 0 ? lineEnd : most);
  return `${kept}\n${text.length - kept.length} more characters dropped`;
}

/** Return text that can be encoded as UTF-8, with visible control characters. */
function clean(message) {
  const visible = (character) => `\\x${character.charCodeAt(0).toString(16).padStart(2, "0")}`;
  return message.toWellFormed().replace(CONTROL, visible);
}

/** Yield the message in parts of at most MAX_RECORD_BYTES, split between lines. Cuts a line that is too long. */
function* parts(message) {
  if (byteLength(message) <= MAX_RECORD_BYTES) {
    yield message;
    return;
  }
  let lines = [];
  let size = 0;
  for (const line of message.split("\n").map(cut)) {
    if (lines.length && size + byteLength(line) > MAX_RECORD_BYTES) {
      yield lines.join("\n");
      lines = [];
      size = 0;
    }
    lines.push(line);
    size += byteLength(line) + 1;
  }
  yield lines.join("\n");
}

function cut(line) {
  const bytes = Buffer.from(line);
  return bytes.length <= MAX_RECORD_BYTES
    ? line
    : bytes.subarray(0, MAX_RECORD_BYTES).toString().replace(/\ufffd+$/, "");
}

/**
 * Return the stack of an error without the frames of the host and of LangGraph, with its causes. Never throws.
 *
 * @param {unknown} error
 */
export function userStack(error) {
  const causes = { count: 0 };
  return stackOf(error, causes);
}

/**
 * Return the stack of an error and those of its causes, as long as `causes` counts few of them: an error may be its own
 * cause, and one of two AggregateErrors that contain each other twice has millions.
 */
function stackOf(error, causes) {
  try {
    return error instanceof Error ? stackWithCauses(error, causes) : textOf(error);
  } catch {
    return textOf(error); // a getter of the error failed
  }
}

function stackWithCauses(error, causes) {
  const lines = shortened(String(error.stack ?? error)).split("\n");
  const begin = lines.findIndex((line) => /^\s+at /.test(line));
  const head = begin < 0 ? lines : lines.slice(0, begin);
  if (/^Error(?:$|:)/.test(head[0])) {
    head[0] = `${errorName(error)}${head[0].slice("Error".length)}`; // a subclass without a name of its own
  }
  const stack = (begin < 0 ? [] : lines.slice(begin)).filter((line) => !line.includes(HERE) && !TOOLS.test(line));
  const own = stack.filter((line) => !CALLERS.test(line));
  const shown = own.length ? own : stack; // the library itself failed
  const inner = [];
  const add = (word, part) => {
    if (causes.count < MAX_CAUSES) {
      causes.count++;
      inner.push(`${word}: ${stackOf(part, causes)}`);
    }
  };
  if (error.cause !== undefined) {
    add("caused by", error.cause);
  }
  for (const part of error instanceof AggregateError ? error.errors : []) {
    add("one of", part);
  }
  return [...head, ...shown, ...inner].join("\n");
}

/** Return the last lines of a stack. */
export function shortStack(error) {
  const lines = userStack(error).split("\n");
  return [lines[0], ...lines.slice(1).slice(-STACK_LINES)].join("\n");
}
