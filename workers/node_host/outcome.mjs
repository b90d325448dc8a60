/**
 * The outcome of a run, in the shapes of the deployment API: the thread's state after it, and its token usage.
 *
 * Open interrupts are those of tasks without output. LangGraph goes on to list an answered interrupt beside its task's
 * result, and does not list a node as next that waits for the answer to its second interrupt.
 */

import { masked } from "./masking.mjs";
import { dumps, errorText, loads } from "./serialization.mjs";

const { isArray } = Array;
const { hasOwn } = Object;
export const INTERRUPT = "__interrupt__";

/**
 * The content of a DONE frame. With `unchanged` the state is not known here, and the stored state of the thread stays as
 * it is.
 */
export class Outcome {
  threadStatus = "idle";
  interrupts = {};
  /** @type {ReturnType<typeof stateRecord> | null} */
  state = null;
  values = "null";
  unchanged = false;
  keepsThread = false; // the run was refused, and its thread stays as it was
  usage = null;
  nodeUsage = null;
  firstTokenAgo = null;
  spans = null;
  /** @type {object | null} */
  replay = null; // the report of a replay
  waitingInterrupts = []; // of a successful run

  /**
   * @param {"success" | "error" | "cancelled"} status
   * @param {{error: string, message: string} | null} error
   */
  constructor(status, error = null) {
    this.status = status;
    this.error = error;
    if (status === "error") {
      this.threadStatus = "error";
    }
  }

  fail(error) {
    Object.assign(this, { status: "error", error, threadStatus: "error", waitingInterrupts: [] });
  }

  /** Set the state from LangGraph's snapshot. A thread without checkpoints has no state. */
  useSnapshot(snapshot, run) {
    if (coordinates(snapshot.config) === null || !snapshot.createdAt) {
      return;
    }
    this.state = stateRecord(snapshot, run);
    this.values = dumps(snapshot.values);
    this.interrupts = interruptsByTask(snapshot, run);
    if (this.status !== "error") {
      this.threadStatus = this.state.next.length || this.state.interrupts.length ? "interrupted" : "idle";
    }
    this.waitingInterrupts = this.status === "success" ? openInterrupts(snapshot, run) : [];
  }

  /** Return the JSON of the DONE frame. */
  document() {
    return {
      status: this.status,
      error: this.error,
      thread_status: this.threadStatus,
      interrupts: this.interrupts,
      state: this.state,
      unchanged: this.unchanged,
      keeps_thread: this.keepsThread,
      usage: this.usage,
      node_usage: this.nodeUsage,
      first_token_ago: this.firstTokenAgo,
      spans: this.spans,
      ...(this.replay ? { replay: this.replay } : {}),
    };
  }

  /** Return the tasks at which the run failed or was cancelled. */
  unfinishedTasks() {
    return this.state && this.status !== "success" ? this.state.tasks : [];
  }

  /** Return the response for a caller that waits for the run: its last values, or its error. */
  answer(values, valuesJson) {
    if (this.status === "error") {
      return dumps({ __error__: this.error });
    }
    if (this.status === "cancelled" || values === undefined || values === null) {
      return this.#storedAnswer();
    }
    return valuesJson ?? (this.state && !isOpen(values) ? this.values : dumps(values));
  }

  lifecycle() {
    if (this.status === "error") {
      return { event: "failed", namespace: [], error: this.error?.message ?? null };
    }
    const isWaiting = this.status === "cancelled" || this.threadStatus === "interrupted";
    return { event: isWaiting ? "interrupted" : "completed", namespace: [] };
  }

  #storedAnswer() {
    const open = this.state?.interrupts ?? [];
    if (this.status === "cancelled" || !open.length) {
      return this.values;
    }
    const listed = open.map((interrupt) => ({ ...interrupt, response_schema: null }));
    const values = loads(this.values);
    const isObject = typeof values === "object" && values !== null && !isArray(values);
    return dumps({ ...(isObject ? values : {}), [INTERRUPT]: listed });
  }
}

function isOpen(values) {
  return typeof values === "object" && values !== null && hasOwn(values, INTERRUPT);
}

/** Return the thread's state, including the states of interrupted subgraphs, whose tasks raised the interrupts. */
export async function readState(graph, config) {
  const snapshot = await stateAt(graph, config);
  const isNested = snapshot.tasks.some((task) => task.interrupts?.length && task.state !== undefined);
  return isNested ? await stateAt(graph, config, { isDeep: true }) : snapshot;
}

/** Return the state at a config, with the states of the subgraphs in its tasks if `isDeep`. */
export async function stateAt(graph, config, { isDeep = false } = {}) {
  return await withPlaces(graph, config, await graph.getState(config, { subgraphs: isDeep }), isDeep);
}

/** Add the places of failed subgraphs, or their states if `isDeep`, which LangGraph leaves out of a snapshot's tasks. */
export async function withPlaces(graph, config, snapshot, isDeep = false) {
  const { checkpoint_ns: ns = "" } = snapshot.config?.configurable ?? {};
  for (const task of snapshot.tasks) {
    const place = `${ns && `${ns}|`}${task.name}:${task.id}`;
    if (isSnapshot(task.state)) {
      await withPlaces(graph, config, task.state, isDeep);
    } else if (task.error && task.state === undefined && (await isStored(graph, place))) {
      const { checkpoint_id: _, ...configurable } = config.configurable;
      const inner = { configurable: { ...configurable, checkpoint_ns: place } };
      task.state = isDeep ? await stateAt(graph, inner, { isDeep }) : inner;
    }
  }
  return snapshot;
}

/** Whether a namespace is that of a subgraph with checkpoints. */
async function isStored(graph, ns) {
  const subgraph = await subgraphAt(graph, ns);
  return subgraph !== null && subgraph.checkpointer !== false;
}

/** Return a graph's subgraph at a checkpoint namespace; null if it has none there. */
export async function subgraphAt(graph, ns) {
  const parts = ns.split("|").filter((part) => !/^\d+$/.test(part));
  const name = parts.map((part) => part.split(":")[0]).join("|");
  for await (const [, subgraph] of graph.getSubgraphsAsync(name, true)) {
    return subgraph;
  }
  return null;
}

/**
 * Return a state record without its values.
 *
 * @param {any} snapshot
 * @param {import("./checkpoints/run_checkpoints.mjs").RunCheckpoints} run
 */
export function stateRecord(snapshot, run) {
  const tasks = snapshot.tasks ?? [];
  const waits = (task) => isPast(snapshot) || !hasOutput(snapshot, run, task);
  const records = tasks.map((task) => taskRecord(task, snapshot, run));
  return {
    ...emptyRecord(coordinates(snapshot.config), coordinates(withMap(snapshot.parentConfig, snapshot.metadata))),
    next: tasks.filter(waits).map((task) => task.name),
    tasks: records,
    metadata: snapshot.metadata ?? null,
    created_at: snapshot.createdAt ?? null,
    interrupts: records.flatMap((task) => task.interrupts),
  };
}

/**
 * Return a state record with nothing but its place.
 *
 * @param {ReturnType<typeof coordinates>} checkpoint
 * @param {ReturnType<typeof coordinates>} parent
 */
export function emptyRecord(checkpoint, parent = null) {
  return {
    next: [],
    tasks: [],
    metadata: null,
    created_at: null,
    checkpoint,
    parent_checkpoint: parent,
    interrupts: [],
    checkpoint_id: checkpoint?.checkpoint_id ?? null,
    parent_checkpoint_id: parent?.checkpoint_id ?? null,
  };
}

/** Return the coordinates of the checkpoint that a config addresses; null if it addresses none. */
export function coordinates(config) {
  const conf = config?.configurable ?? {};
  if (!conf.checkpoint_id) {
    return null;
  }
  return {
    checkpoint_id: conf.checkpoint_id,
    thread_id: conf.thread_id ?? null,
    checkpoint_ns: conf.checkpoint_ns ?? "",
    ...(conf.checkpoint_map ? { checkpoint_map: conf.checkpoint_map } : {}),
  };
}

/** Return a config of a subgraph's checkpoint with the checkpoints of the graphs around it. */
export function withMap(config, metadata) {
  const parents = metadata?.parents ?? {};
  const { checkpoint_ns: ns = "", checkpoint_id: id } = config?.configurable ?? {};
  if (!id || !Object.keys(parents).length) {
    return config;
  }
  return { ...config, configurable: { ...config.configurable, checkpoint_map: { ...parents, [ns]: id } } };
}

function taskRecord(task, snapshot, run) {
  return {
    id: task.id,
    name: task.name,
    path: [...(task.path ?? [])],
    error: task.error === undefined || task.error === null ? null : errorOf(task.error),
    interrupts: waiting(task, snapshot, run).map(interruptRecord),
    checkpoint: subgraphPlace(task.state, run.threadId),
    state: null,
    result: task.result ?? (hasOutput(snapshot, run, task) ? {} : null),
  };
}

/** Return the text of a task's error, which LangGraph keeps as an object with its name and message. */
export function errorOf(error) {
  const name = typeof error === "object" && error?.name ? `${masked(String(error.name))}: ` : "";
  return `${name}${errorText(error)}`;
}

function subgraphPlace(state, threadId) {
  const conf = state?.config?.configurable ?? state?.configurable ?? {};
  return conf.checkpoint_ns ? { thread_id: threadId, checkpoint_ns: conf.checkpoint_ns } : null;
}

/** Return the open interrupts of a task. Those of an earlier checkpoint include the answered ones. */
function waiting(task, snapshot, run) {
  return !isPast(snapshot) && hasOutput(snapshot, run, task) ? [] : (task.interrupts ?? []);
}

/** Whether a snapshot shows a checkpoint before its tasks, all of which are next. */
function isPast(snapshot) {
  return snapshot.next.length === (snapshot.tasks ?? []).length;
}

function hasOutput(snapshot, run, task) {
  const { checkpoint_ns: ns = "", checkpoint_id: id } = snapshot.config?.configurable ?? {};
  return run.hasOutput(ns, id, task.id);
}

/** Whether the state of a task is that of its subgraph, and not only its place. */
export function isSnapshot(state) {
  return typeof state === "object" && state !== null && hasOwn(state, "values") && hasOwn(state, "tasks");
}

/** Return open interrupts by the id of the innermost task that raised them. */
export function interruptsByTask(snapshot, run) {
  const interrupts = {};
  for (const task of snapshot.tasks ?? []) {
    const inner = isSnapshot(task.state) ? interruptsByTask(task.state, run) : {};
    const own = waiting(task, snapshot, run);
    if (Object.keys(inner).length) {
      Object.assign(interrupts, inner);
    } else if (own.length) {
      interrupts[task.id] = own.map(interruptRecord);
    }
  }
  return interrupts;
}

/**
 * Return the open interrupts of a state, each with the namespace of the innermost task that raised it.
 *
 * @returns {{ns: string[], id: string, value: unknown}[]}
 */
function openInterrupts(snapshot, run, ns = []) {
  return (snapshot.tasks ?? []).flatMap((task) => {
    const place = task.state?.config?.configurable?.checkpoint_ns;
    const inner = isSnapshot(task.state) ? openInterrupts(task.state, run, place ? place.split("|") : []) : [];
    return inner.length
      ? inner
      : waiting(task, snapshot, run).map((item) => ({ ns, id: item.id ?? null, value: item.value ?? null }));
  });
}

function interruptRecord(interrupt) {
  return { id: interrupt.id ?? null, value: interrupt.value ?? null };
}
