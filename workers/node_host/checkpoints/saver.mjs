/**
 * The checkpoint saver of graphs. It serializes checkpoints and sends them to the runner, which stores them.
 *
 * One saver serves all graphs and runs of the host. A checkpoint is sent as one frame. Its data contains small channel
 * values. Large values are separate blobs by (channel, version), and only blobs that are not stored yet are sent.
 */

import { currentCheckpoints } from "../current.mjs";
import * as frames from "../frames.mjs";
import { parse, stringify } from "../json.mjs";
import {
  ancestorsQuestion, asTuple, configMetadata, configOf, listQuestion, nextPage, tupleQuestion,
} from "./run_checkpoints.mjs";
import { TYPE, checkType } from "./serializer.mjs";
import { headOf } from "./storage.mjs";

const { byteLength, from } = Buffer;
const { random } = Math;
const { isArray } = Array;

// A serialized value up to this size is cheaper inside the checkpoint than as a separate row.
const INLINE_BYTES = 512;
const TASKS = "__pregel_tasks";
// Indexes of writes to LangGraph's own channels.
const INDEXES = { __proto__: null, __error__: -1, __scheduled__: -2, __interrupt__: -3, __resume__: -4 };

/** A checkpoint exceeds the limit. */
class CheckpointTooLarge extends Error {
  name = "CheckpointTooLarge";
}

/**
 * Return the saver's class, which extends that of the project's library.
 *
 * @param {import("../libraries.mjs").Library} library
 * @param {number} maxBytes
 */
export function makeSaver(library, maxBytes) {
  const { BaseCheckpointSaver, copyCheckpoint } = library.checkpoint;

  class HostSaver extends BaseCheckpointSaver {
    // Writing

    async put(config, checkpoint, metadata, newVersions) {
      const run = currentCheckpoints();
      const { thread_id: threadId, checkpoint_ns: ns = "", checkpoint_id: parentId } = config.configurable;
      require({ threadId });
      const everything = { ...configMetadata(config), ...run.metadata, ...metadata };
      delete everything.writes;
      const place = { threadId, ns, parentId };
      if (remember(run, place, checkpoint, everything)) {
        const [header, blobs] = encode(run, place, checkpoint, everything, newVersions, maxBytes);
        const storage = run.storageOf(threadId);
        if (run.waits) {
          await storage.ask(frames.CHECKPOINT, header, blobs);
        } else {
          storage.send(frames.CHECKPOINT, header, blobs);
        }
      }
      return configOf(threadId, ns, checkpoint.id);
    }

    async putWrites(config, writes, taskId, taskPath = "") {
      const run = currentCheckpoints();
      const { thread_id: threadId, checkpoint_ns: ns = "", checkpoint_id: id } = config.configurable;
      require({ threadId, id });
      rememberWrites(run, { threadId, ns, id }, writes, taskId, taskPath);
      if (threadId === run.threadId) {
        run.times?.endTask(ns, id, taskId, taskPath, writes);
      }
      if (run.skipsRoot && !ns) {
        return;
      }
      const header = {
        thread_id: threadId,
        checkpoint_ns: ns,
        checkpoint_id: id,
        task_id: taskId,
        task_path: taskPath,
        writes: writes.map(([channel], position) => [INDEXES[channel] ?? position, channel, TYPE]),
      };
      const blobs = writes.map(([channel, value]) => from(run.serializer.dumps(value, channel)));
      checkSize(blobs, maxBytes);
      run.storageOf(threadId).send(frames.WRITES, header, blobs);
    }

    // Reading

    async getTuple(config) {
      const run = currentCheckpoints();
      const conf = config.configurable ?? {};
      if (conf.thread_id === undefined) {
        return undefined;
      }
      const known = fromMemory(run, conf, copyCheckpoint);
      if (known !== null) {
        return known.tuple;
      }
      const parts = await run.storageOf(conf.thread_id).ask(frames.ASK, tupleQuestion(conf), []);
      const loaded = decodeOne(run, parts);
      if (loaded !== undefined) {
        run.times?.continueFrom(loaded.checkpoint);
      }
      return loaded;
    }

    async *list(config, options) {
      const run = currentCheckpoints();
      let question = listQuestion(run, config?.configurable ?? {}, options);
      while (question !== null) {
        const parts = await run.storageOf(question.thread_id).ask(frames.ASK, question, []);
        const head = headOf(parts);
        yield* decodeAll(run, head.items, parts);
        question = nextPage(question, head);
      }
    }

    async getDeltaChannelHistory({ config, channels }) {
      const run = currentCheckpoints();
      const { thread_id: threadId, checkpoint_ns: ns = "", checkpoint_id: id } = config.configurable;
      const history = new DeltaHistory(channels);
      const known = fromMemory(run, config.configurable, copyCheckpoint);
      const target = known?.tuple;
      let at = known === null ? (id ?? null) : target?.parentConfig?.configurable.checkpoint_id;
      let skips = known === null; // the target itself, whose ancestors are read
      while (at !== undefined && history.isOpen) {
        const question = ancestorsQuestion(threadId, ns, at, channels);
        const parts = await run.storageOf(threadId).ask(frames.ASK, question, []);
        const ancestors = decodeAll(run, headOf(parts).items, parts);
        for (const ancestor of ancestors.slice(skips ? 1 : 0)) {
          history.take(ancestor);
        }
        skips = false;
        at = ancestors.at(-1)?.parentConfig?.configurable.checkpoint_id;
      }
      return history.result();
    }

    async deleteThread(threadId) {
      const run = currentCheckpoints();
      run.storedBlobs.clear();
      const question = { op: "delete_thread", thread_id: threadId };
      headOf(await run.storageOf(threadId).ask(frames.ASK, question, []));
    }

    /**
     * Return the next version: text that sorts after the current one. It ends with random digits, because two forks of
     * one checkpoint must not share a version.
     */
    getNextVersion(version) {
      const number = version === undefined || version === null ? 0 : parseInt(String(version), 10);
      const digits = Math.floor(random() * 2 ** 40).toString(16);
      return `${String(number + 1).padStart(10, "0")}.${digits.padStart(10, "0")}`;
    }

    toJSON() {
      return "[HostSaver]";
    }
  }
  return new HostSaver();
}

/** Throw if a place has no thread or checkpoint. */
function require(place) {
  for (const [name, value] of Object.entries(place)) {
    if (value === undefined) {
      throw new TypeError(`the config of a checkpoint has no ${name === "id" ? "checkpoint_id" : "thread_id"}`);
    }
  }
}

/** Remember a checkpoint. Returns whether it is sent. */
function remember(run, { threadId, ns, parentId }, checkpoint, metadata) {
  if (threadId !== run.threadId) {
    return true;
  }
  run.last.set(ns, { checkpoint, metadata, parentId, writes: new Map() });
  run.times?.beginStep(ns, checkpoint);
  if (!ns) {
    run.newest = null;
  }
  return Boolean(ns) || !run.skipsRoot;
}

function rememberWrites(run, { threadId, ns, id }, writes, taskId, path) {
  if (threadId !== run.threadId) {
    return;
  }
  if (!ns) {
    run.newest = null;
  }
  const saved = run.last.get(ns);
  if (saved === undefined || saved.checkpoint.id !== id) {
    return;
  }
  writes.forEach(([channel, value], position) => {
    const index = INDEXES[channel] ?? position;
    const key = `${taskId} ${index}`;
    if (index < 0 || !saved.writes.has(key)) {
      saved.writes.set(key, { taskId, index, path, channel, value });
    }
  });
}

/** Return the header and blobs of a CHECKPOINT frame. */
function encode(run, { threadId, ns, parentId }, checkpoint, metadata, newVersions, maxBytes) {
  const { channel_values: values, ...rest } = checkpoint;
  const inline = [];
  const refers = {};
  const added = [];
  const blobs = [];
  for (const [channel, value] of Object.entries(values)) {
    const version = String(checkpoint.channel_versions[channel] ?? "");
    const key = blobKey(threadId, ns, channel, version);
    if (!run.shipsAll && run.storedBlobs.has(key) && !Object.hasOwn(newVersions, channel)) {
      refers[channel] = version;
      continue;
    }
    const text = run.serializer.dumps(value, channel);
    if (!version || text.length <= INLINE_BYTES && byteLength(text) <= INLINE_BYTES) {
      inline.push(`${stringify(channel)}:${text}`);
    } else {
      refers[channel] = version;
      added.push([channel, version, TYPE]);
      blobs.push(from(text));
      run.storedBlobs.add(key);
    }
  }
  blobs.unshift(from(`{"checkpoint":${stringify(rest)},"values":{${inline.join(",")}}}`));
  checkSize(blobs, maxBytes);
  const header = {
    thread_id: threadId,
    checkpoint_ns: ns,
    checkpoint_id: checkpoint.id,
    parent_checkpoint_id: parentId ?? null,
    type: TYPE,
    blobs: refers,
    new: added,
    metadata,
  };
  return [header, blobs];
}

function checkSize(blobs, maxBytes) {
  const size = blobs.reduce((sum, blob) => sum + blob.length, 0);
  if (size > maxBytes) {
    throw new CheckpointTooLarge(`checkpoint of ${size} bytes: the limit is ${maxBytes} bytes`);
  }
}

/** Return `{tuple}` if the answer is known without asking the runner; null otherwise. */
function fromMemory(run, conf, copyCheckpoint) {
  if (conf.thread_id !== run.threadId) {
    return null;
  }
  const ns = conf.checkpoint_ns ?? "";
  const saved = run.last.get(ns);
  if (saved !== undefined) {
    const isLast = !conf.checkpoint_id || conf.checkpoint_id === saved.checkpoint.id;
    if (!run.isOver || !isLast) {
      return null;
    }
    const tuple = asTuple(run.threadId, ns, saved, copyCheckpoint);
    run.noteOutputs(ns, saved.checkpoint.id, tuple.pendingWrites);
    return { tuple };
  }
  if (run.isFresh && !conf.checkpoint_id) {
    return { tuple: undefined };
  }
  if (run.newest !== null && !ns) {
    const newest = decodeOne(run, run.newest);
    if (!conf.checkpoint_id || newest?.checkpoint.id === conf.checkpoint_id) {
      return { tuple: newest };
    }
  }
  return null;
}

function decodeOne(run, parts) {
  const head = headOf(parts);
  return head.found ? decodeAll(run, [head], parts)[0] : undefined;
}

/** Restore the checkpoints of an answer, whose parts follow its JSON. */
function decodeAll(run, items, parts) {
  let at = 1;
  return items.map((head) => {
    const data = parts[at];
    const blobs = parts.slice(at + 1, (at += 1 + head.blobs.length));
    const writes = parts.slice(at, (at += head.writes.length));
    return decode(run, head, data, blobs, writes);
  });
}

function decode(run, head, data, blobs, writes) {
  const { thread_id: threadId, checkpoint_ns: ns } = head;
  checkType(head.type);
  const { checkpoint, values } = parse(data.toString());
  checkpoint.channel_values = Object.fromEntries(
    Object.entries(values).map(([channel, value]) => [channel, run.serializer.restored(value)]),
  );
  head.blobs.forEach(([channel, version, type], position) => {
    checkType(type);
    checkpoint.channel_values[channel] = run.serializer.loads(blobs[position]);
    run.storedBlobs.add(blobKey(threadId, ns, channel, version));
  });
  const { channel_values: restored } = checkpoint;
  if (Object.hasOwn(restored, TASKS)) {
    restored[TASKS] = ofTopic(restored[TASKS]);
  }
  const pendingWrites = head.writes.map(([taskId, channel, type], position) => {
    checkType(type);
    return [taskId, channel, run.serializer.loads(writes[position])];
  });
  run.noteOutputs(ns, head.checkpoint_id, pendingWrites);
  const parentId = head.parent_checkpoint_id;
  return {
    config: configOf(threadId, ns, head.checkpoint_id),
    checkpoint,
    metadata: head.metadata,
    parentConfig: parentId ? configOf(threadId, ns, parentId) : undefined,
    pendingWrites,
  };
}

/**
 * Return the value of LangGraph's channel of tasks in the shape that all its versions read: what it has seen, and its
 * values. Newer versions store the values alone.
 */
function ofTopic(value) {
  const isPair = value.length === 2 && value.every(isArray);
  return isPair ? value : [[], value];
}

function blobKey(...parts) {
  return parts.join("\0");
}

/** Collects the writes and values of some channels from a checkpoint's ancestors, the nearest ancestor first. */
class DeltaHistory {
  #writes;
  #seeds = new Map();
  #open;

  constructor(channels) {
    this.#writes = new Map(channels.map((channel) => [channel, []]));
    this.#open = new Set(channels); // channels without a value in the ancestors so far
  }

  get isOpen() {
    return this.#open.size > 0;
  }

  take({ checkpoint, pendingWrites }) {
    for (const write of pendingWrites.toReversed()) {
      if (this.#open.has(write[1])) {
        this.#writes.get(write[1]).push(write);
      }
    }
    for (const channel of [...this.#open]) {
      if (Object.hasOwn(checkpoint.channel_values, channel)) {
        this.#seeds.set(channel, checkpoint.channel_values[channel]);
        this.#open.delete(channel);
      }
    }
  }

  /** Return by channel its `writes`, the oldest first, and as `seed` its value before them if one is stored. */
  result() {
    const channels = [...this.#writes].map(([channel, writes]) => {
      const seed = this.#seeds.has(channel) ? { seed: this.#seeds.get(channel) } : {};
      return [channel, { writes: writes.toReversed(), ...seed }];
    });
    return Object.fromEntries(channels);
  }
}
