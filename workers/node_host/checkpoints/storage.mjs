/**
 * Storage of a run's checkpoints: over the socket to the runner, or for a temporary run in this process's memory.
 * `workers/graph_host/checkpoints/storage.py` documents the questions and the answers.
 *
 * @typedef {{thread_id: string, checkpoint_ns: string, [key: string]: any}} Header
 */

import * as frames from "../frames.mjs";
import { parseDocument } from "../json.mjs";
import { dumps, withoutNul } from "../serialization.mjs";

const { parse } = JSON;
const { compare, from } = Buffer;
const RECORD = ["thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "metadata"];

/** The runner refused a question, or the run is over. */
class StorageFailed extends Error {
  name = "StorageFailed";
}

/** Return the JSON of an answer. Throws StorageFailed if it is an error. */
export function headOf(parts) {
  const head = parseDocument(parts[0]);
  if (head.error !== undefined) {
    throw new StorageFailed(head.error);
  }
  return head;
}

/** Compare texts by code points, as Python and PostgreSQL do. */
function compareTexts(one, other) {
  return one === other ? 0 : compare(from(one), from(other));
}

/**
 * Stores checkpoints through the runner, for the run with this `id`.
 *
 * The runner may answer a question before it has stored earlier writes that were not waited for. A question after such
 * writes therefore first waits for the answer to an empty write.
 */
export class Storage {
  #connection;
  #id;
  #barrier;
  #isAhead = false; // a write was sent whose storing is not confirmed
  isClosed = false;

  constructor(connection, id, threadId) {
    this.#connection = connection;
    this.#id = id;
    this.#barrier = {
      thread_id: threadId, checkpoint_ns: "", checkpoint_id: "", task_id: "", task_path: "", writes: [],
    };
  }

  /** Store without waiting. */
  send(kind, header, blobs) {
    this.#checkOpen();
    this.#isAhead = true;
    this.#connection.send(kind, this.#id, frames.pack([documentOf(header)(0), ...blobs]));
  }

  /** Store or read, and wait for the answer. */
  async ask(kind, header, blobs) {
    this.#checkOpen();
    if (kind === frames.ASK && this.#isAhead) {
      this.#isAhead = false;
      await this.#connection.ask(frames.WRITES, this.#id, documentOf(this.#barrier));
    }
    return await this.#connection.ask(kind, this.#id, documentOf(header), blobs);
  }

  #checkOpen() {
    if (this.isClosed) {
      throw new StorageFailed("the run is over");
    }
  }
}

function documentOf(header) {
  return (number) => withoutNul(dumps({ ...header, ask: number }));
}

/** Keeps the checkpoints of a temporary run in memory. */
export class MemoryStorage {
  isClosed = false;
  #checkpoints = new Map(); // by namespace and checkpoint: its header and data
  #blobs = new Map();
  #writes = new Map();

  send(kind, header, blobs) {
    if (kind === frames.CHECKPOINT) {
      this.#put(parse(dumps(header)), blobs);
    } else {
      this.#putWrites(header, blobs);
    }
  }

  async ask(kind, header, blobs) {
    if (this.isClosed) {
      throw new StorageFailed("the run is over");
    }
    return this.answer(kind, header, blobs);
  }

  answer(kind, header, blobs) {
    if (kind !== frames.ASK) {
      this.send(kind, header, blobs);
      return [];
    }
    switch (header.op) {
      case "get_tuple":
        return this.#get(header);
      case "list":
        return this.#list(header);
      case "ancestors":
        return this.#ancestors(header);
      case "delete_thread":
        [this.#checkpoints, this.#blobs, this.#writes].forEach((stored) => stored.clear());
        return [from("{}")];
      default:
        throw new StorageFailed(`${header.op}: not on a temporary thread`);
    }
  }

  #put(header, blobs) {
    const ns = header.checkpoint_ns;
    this.#checkpoints.set(key(ns, header.checkpoint_id), { header, data: blobs[0] });
    header.new.forEach(([channel, version, type], position) => {
      this.#blobs.set(key(ns, channel, version), { type, data: blobs[position + 1] });
    });
  }

  #putWrites(header, blobs) {
    const place = key(header.checkpoint_ns, header.checkpoint_id);
    const stored = this.#writes.get(place) ?? new Map();
    this.#writes.set(place, stored);
    header.writes.forEach(([index, channel, type], position) => {
      const at = key(header.task_id, index);
      if (index < 0 || !stored.has(at)) {
        const { task_id: taskId, task_path: path } = header;
        stored.set(at, { taskId, index, path, channel, type, data: blobs[position] });
      }
    });
  }

  #get({ checkpoint_ns: ns, checkpoint_id: id }) {
    const newest = this.#headers(ns).find((header) => !id || header.checkpoint_id === id);
    if (newest === undefined) {
      return [from('{"found":false}')];
    }
    const { record, blobs } = this.#record(newest);
    return [from(dumps({ found: true, ...record })), ...blobs];
  }

  #list({ checkpoint_ns: ns, checkpoint_id: id, before, filter, limit }) {
    const found = this.#headers(ns ?? undefined).filter(
      (header) =>
        (!id || header.checkpoint_id === id) &&
        (!before || header.checkpoint_id < before) &&
        Object.entries(filter).every(([name, value]) => dumps(header.metadata[name]) === dumps(value)),
    );
    return this.#page(found.slice(0, limit), found.length > limit);
  }

  #ancestors({ checkpoint_ns: ns, checkpoint_id: id, limit }) {
    let at = id ? this.#checkpoints.get(key(ns, id))?.header : this.#headers(ns).at(0);
    const chain = [];
    while (at !== undefined && chain.length < limit) {
      chain.push(at);
      at = this.#checkpoints.get(key(ns, at.parent_checkpoint_id ?? ""))?.header;
    }
    return this.#page(chain, at !== undefined);
  }

  /** Return the headers of a namespace, or of all, the newest first. */
  #headers(ns) {
    const headers = [...this.#checkpoints.values()].map(({ header }) => header);
    const own = ns === undefined ? headers : headers.filter((header) => header.checkpoint_ns === ns);
    return own.sort((one, other) => compareTexts(other.checkpoint_id, one.checkpoint_id));
  }

  #page(headers, more) {
    const page = headers.map((header) => this.#record(header));
    const head = { items: page.map(({ record }) => record), more };
    return [from(dumps(head)), ...page.flatMap(({ blobs }) => blobs)];
  }

  /** Return the writes of a checkpoint in order. */
  writesOf({ checkpoint_ns: ns, checkpoint_id: id }) {
    const stored = this.#writes.get(key(ns, id));
    return stored === undefined ? [] : [...stored.values()].sort(compareWrites);
  }

  #record(header) {
    const { data } = this.#checkpoints.get(key(header.checkpoint_ns, header.checkpoint_id));
    const writes = this.writesOf(header);
    const blobs = Object.entries(header.blobs).map(([channel, version]) => {
      return { channel, version, ...this.#blobs.get(key(header.checkpoint_ns, channel, version)) };
    });
    const record = {
      ...Object.fromEntries(RECORD.map((name) => [name, header[name]])),
      blobs: blobs.map(({ channel, version, type }) => [channel, version, type]),
      writes: writes.map(described),
    };
    return { record, blobs: [data, ...blobs.map((blob) => blob.data), ...writes.map((write) => write.data)] };
  }
}

/** Reads from the runner, and keeps all writes in memory. The receiver of the query's answer stores them. */
export class Overlay extends Storage {
  #memory = new MemoryStorage();
  /** @type {[number, Header, Buffer[]][]} */
  written = [];

  send(kind, header, blobs) {
    this.written.push([kind, header, blobs]);
    this.#memory.send(kind, header, blobs);
  }

  async ask(kind, header, blobs) {
    if (kind !== frames.ASK) {
      this.send(kind, header, blobs);
      return [];
    }
    if (header.op === "get_tuple" || header.op === "ancestors") {
      const answer = this.#memory.answer(kind, header, []);
      const head = headOf(answer);
      if (head.found || head.items?.length) {
        return answer;
      }
    }
    return this.#withMemoryWrites(await super.ask(kind, header, blobs));
  }

  /**
   * Add the writes kept here to the runner's checkpoints. An update first adds writes to the existing checkpoint, and
   * LangGraph then derives the new checkpoint from them.
   */
  #withMemoryWrites(parts) {
    const head = headOf(parts);
    const records = head.items ?? (head.found ? [head] : []);
    if (!records.some((record) => this.#memory.writesOf(record).length)) {
      return parts;
    }
    const merged = [];
    let at = 1;
    const take = (count) => merged.push(...parts.slice(at, (at += count)));
    for (const record of records) {
      take(1 + record.blobs.length);
      const writes = this.#memory.writesOf(record);
      merged.push(...writes.map((write) => write.data));
      take(record.writes.length);
      record.writes = [...writes.map(described), ...record.writes];
    }
    return [from(dumps(head)), ...merged];
  }
}

export function compareWrites(one, other) {
  return compareTexts(one.path, other.path) || compareTexts(one.taskId, other.taskId) || one.index - other.index;
}

function described({ taskId, channel, type }) {
  return [taskId, channel, type];
}

function key(...parts) {
  return parts.join("\0");
}
