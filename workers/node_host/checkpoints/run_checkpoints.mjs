/** The saver's state of one run or query, and the questions that it sends to the runner. */

import { dumps } from "../serialization.mjs";
import { MemoryStorage, compareWrites } from "./storage.mjs";

const { byteLength } = Buffer;

const PAGE = 50;
/** Entries of a config that address a checkpoint. */
export const CHECKPOINT_KEYS = ["checkpoint_id", "checkpoint_ns", "checkpoint_map"];
/** Entries of `configurable` with the user's record. Checkpoints do not store them. */
export const PRIVATE = new Set(["langgraph_auth_user", "langgraph_auth_permissions", "langgraph_auth_user_id"]);
// Entries that LangGraph for Python keeps out of metadata.
const EXCLUDED = new Set([
  "thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "langgraph_step", "langgraph_node",
  "langgraph_triggers", "langgraph_path", "langgraph_checkpoint_ns",
]);
// Channels that a task writes besides its output.
const CONTROL = new Set(["__interrupt__", "__resume__", "__error__", "__error_source_node__", "__scheduled__"]);
// Larger entries are not stored in metadata: they are no search terms, and each checkpoint would repeat them.
const MAX_ENTRY_BYTES = 4096;

/**
 * The newest checkpoint that a run has put in one namespace, as live objects.
 *
 * @typedef {object} Saved
 * @property {any} checkpoint
 * @property {Record<string, unknown>} metadata
 * @property {string | undefined} parentId
 * @property {Map<string, {taskId: string, index: number, path: string, channel: string, value: unknown}>} writes
 */

/** The saver's state of one run or query. */
export class RunCheckpoints {
  /** @type {string} */
  threadId;
  /** @type {any} */
  storage;
  /** @type {Record<string, unknown>} of the run, for each of its checkpoints */
  metadata;
  /** @type {import("./serializer.mjs").Serializer} */
  serializer;
  waits = false; // durability sync: `put` returns after the checkpoint is stored
  isFresh = false; // the thread has no checkpoint yet
  skipsRoot = false; // the root's checkpoints are not sent: nothing reads them before the run ends
  isOver = false; // the graph has returned, and `last` does not change any more
  shipsAll = false; // send all blobs of a checkpoint, including those that are stored already
  /** @type {Buffer[] | null} the thread's newest stored checkpoint, until this run writes */
  newest = null;
  /** @type {Map<string, Saved>} by namespace */
  last = new Map();
  storedBlobs = new Set();
  /** @type {import("./node_times.mjs").NodeTimes | null} of the nodes; null: the run keeps no spans */
  times = null;
  #foreign = new Map();
  #outputs = new Map(); // by checkpoint that was read: the tasks with output

  /** @param {Partial<RunCheckpoints>} fields */
  constructor(fields) {
    Object.assign(this, fields);
  }

  /**
   * Return the storage of a thread's checkpoints.
   *
   * A node may invoke another graph with a thread id of its choice. The deployment has no such thread, so its checkpoints
   * are kept in memory until the run ends.
   */
  storageOf(threadId) {
    if (threadId === this.threadId) {
      return this.storage;
    }
    if (!this.#foreign.has(threadId)) {
      this.#foreign.set(threadId, new MemoryStorage());
    }
    return this.#foreign.get(threadId);
  }

  /** Record which tasks of a checkpoint have output, for the records of its state. */
  noteOutputs(ns, checkpointId, pendingWrites) {
    const tasks = pendingWrites.filter(([, channel]) => !CONTROL.has(channel)).map(([taskId]) => taskId);
    this.#outputs.set(`${ns}\0${checkpointId}`, new Set(tasks));
  }

  /** Whether a task of a checkpoint that was read has output. */
  hasOutput(ns, checkpointId, taskId) {
    return this.#outputs.get(`${ns}\0${checkpointId}`)?.has(taskId) ?? false;
  }

  /** Refuse all further work for this run, of a node that goes on after its end. */
  close() {
    this.storage.isClosed = true;
    for (const storage of this.#foreign.values()) {
      storage.isClosed = true;
    }
  }
}

/** Return the entries of `configurable` that are stored in the metadata of a run's checkpoints. */
export function configured(configurable) {
  return pick(configurable, isShort);
}

/** Return the metadata that a graph's own config adds to a checkpoint. Includes only scalars. */
export function configMetadata(config) {
  const isScalar = (value) => ["string", "number", "boolean"].includes(typeof value) && isShort(value);
  return { ...pick(config.configurable ?? {}, isScalar), ...pick(config.metadata ?? {}, isScalar) };
}

function pick(entries, accepts) {
  return Object.fromEntries(Object.entries(entries).filter(([name, value]) => isShown(name) && accepts(value)));
}

function isShown(name) {
  return !name.startsWith("__") && !EXCLUDED.has(name) && !PRIVATE.has(name);
}

function isShort(value) {
  const isLong = typeof value === "string" || (typeof value === "object" && value !== null);
  return !isLong || byteLength(dumps(value)) <= MAX_ENTRY_BYTES;
}

/** Return the config that addresses a checkpoint. */
export function configOf(threadId, ns, checkpointId) {
  return { configurable: { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: checkpointId } };
}

/** Return the checkpoint that a run has put last, as the library expects it. */
export function asTuple(threadId, ns, saved, copyCheckpoint) {
  const writes = [...saved.writes.values()].sort(compareWrites);
  return {
    config: configOf(threadId, ns, saved.checkpoint.id),
    checkpoint: copyCheckpoint(saved.checkpoint),
    metadata: saved.metadata,
    parentConfig: saved.parentId ? configOf(threadId, ns, saved.parentId) : undefined,
    pendingWrites: writes.map(({ taskId, channel, value }) => [taskId, channel, value]),
  };
}

export function tupleQuestion(conf) {
  return {
    op: "get_tuple",
    thread_id: conf.thread_id,
    checkpoint_ns: conf.checkpoint_ns ?? "",
    checkpoint_id: conf.checkpoint_id || null,
  };
}

/** Return the question for the first page; null for a list without items. */
export function listQuestion(run, conf, options) {
  const { filter, before, limit } = options ?? {};
  if (limit !== undefined && limit !== null && limit <= 0) {
    return null;
  }
  return {
    op: "list",
    thread_id: conf.thread_id ?? run.threadId,
    checkpoint_ns: conf.checkpoint_ns ?? null,
    checkpoint_id: conf.checkpoint_id || null,
    before: before?.configurable?.checkpoint_id ?? null,
    filter: filter ?? {},
    limit: Math.min(limit ?? PAGE, PAGE),
    remaining: limit ?? null,
  };
}

/** Return the question for the next page; null if there is none or the limit is reached. */
export function nextPage(question, head) {
  const { items, more } = head;
  const remaining = question.remaining === null ? null : question.remaining - items.length;
  if (!items.length || !more || remaining === 0) {
    return null;
  }
  const limit = Math.min(remaining ?? PAGE, PAGE);
  return { ...question, before: items.at(-1).checkpoint_id, limit, remaining };
}

export function ancestorsQuestion(threadId, ns, checkpointId, channels) {
  return {
    op: "ancestors",
    thread_id: threadId,
    checkpoint_ns: ns,
    checkpoint_id: checkpointId ?? null,
    channels: [...channels].sort(),
    limit: PAGE,
  };
}
