/** The chunks of LangGraph's stream in the shapes that LangGraph for Python gives them. */

import { PRIVATE } from "./checkpoints/run_checkpoints.mjs";
import { isMessage } from "./messages.mjs";
import { INTERRUPT, errorOf, withMap } from "./outcome.mjs";
import { errorRecord, plain } from "./serialization.mjs";

const NAMES_NODE = /^1\.[0-6]\./; // versions of LangGraph

/**
 * Return the namespace of the graph that a chunk belongs to. Older versions of LangGraph add the node's task for messages
 * and tools.
 */
export function namespaceOf(ns, mode, payload, version) {
  if (!["messages", "tools"].includes(mode) || !NAMES_NODE.test(version)) {
    return ns;
  }
  let tasks = 1;
  let path = payload[1]?.langgraph_path; // of messages
  while (path?.[0] === "__pregel_push" && path.at(-1) === true) {
    tasks++; // a task of the functional API, whose caller is a task too
    path = path[1];
  }
  return ns.slice(0, -tasks);
}

export function isInterrupted(payload) {
  return typeof payload === "object" && payload !== null && Array.isArray(payload[INTERRUPT]);
}

/** Return the updates of nodes. A node without an update has null. */
export function updatesOf(payload) {
  const isEmpty = (update) =>
    typeof update === "object" && update !== null && !isMessage(update) && Object.keys(update).length === 0;
  return Object.fromEntries(
    Object.entries(payload).map(([node, update]) => [node, isEmpty(update) && !Array.isArray(update) ? null : update]),
  );
}

/** Return an interrupt as events contain it. */
export function streamed(interrupt) {
  return {
    value: interrupt.value ?? null,
    id: interrupt.id ?? null,
    response_schema: plain(interrupt.responseSchema ?? interrupt.response_schema),
  };
}

/** Return the empty chunk at the end of a call. Clients join it to the ones before, so it has their kind of content. */
export function emptied(message) {
  return new message.constructor({ content: Array.isArray(message.content) ? [] : "", id: message.id });
}

/** Return the metadata of a streamed message without the empty entries that LangGraph adds. */
export function messageMetadata(metadata) {
  const { tags, name: _, ...rest } = metadata ?? {};
  return tags?.length ? { ...rest, tags } : rest;
}

/** Whether a chunk is the end of a task that hands over to the graph around its own, which Python's streams leave out. */
export function isHandover(mode, payload) {
  const task = mode === "tasks" ? payload : mode === "debug" ? payload.payload : null;
  return task?.error?.name === "ParentCommand";
}

/** Return the begin or end of a task as Python's events contain it. */
export function taskOf(payload) {
  if (!(Object.hasOwn(payload, "result"))) {
    const { interrupts: _, ...begin } = payload;
    return begin;
  }
  const { error, result, interrupts } = payload;
  return {
    ...payload,
    error: error ? errorRecord(error) : null,
    // up to version 0.3 a list of pairs
    result: Array.isArray(result) ? Object.fromEntries(result) : (result ?? {}),
    interrupts: (interrupts ?? []).map(streamed),
  };
}

/** Return a checkpoint without internal entries of its configs, with the names that clients expect. */
export function checkpointOf(payload) {
  const { config, parentConfig, tasks, ...rest } = payload;
  return {
    config: publicConfig(withMap(config, rest.metadata)),
    parent_config: publicConfig(withMap(parentConfig, rest.metadata)),
    ...rest,
    tasks: (tasks ?? []).map(checkpointTask),
  };
}

function publicConfig(config) {
  if (!config) {
    return null;
  }
  const shown = Object.entries(config.configurable ?? {}).filter(
    ([name]) => !name.startsWith("__") && !PRIVATE.has(name),
  );
  return { configurable: Object.fromEntries(shown) };
}

function checkpointTask({ id, name, error, interrupts, result, state }) {
  const task = { id, name, state: state ?? null };
  if (error) {
    return { ...task, error: errorOf(error) };
  }
  const shown = { ...task, interrupts: (interrupts ?? []).map(streamed) };
  return result === undefined ? shown : { ...shown, result };
}

/** Return a task of a checkpoint. A subgraph's task has `checkpoint`, the place of its checkpoints, not `state`. */
export function withCheckpoint({ state, ...task }) {
  return state ? { ...task, checkpoint: state.configurable } : { ...task, state };
}
