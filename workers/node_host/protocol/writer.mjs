/**
 * Conversion of the chunks of a graph's stream to events of protocol v2, the second view of a run.
 *
 * The events are derived from the same chunks as the classic events, only if a reader requests them. LangGraph's own stream
 * of this protocol is not used: a thread's state must not depend on the readers of its runs.
 */

import { taskOf, updatesOf } from "../chunks.mjs";
import { masked } from "../masking.mjs";
import { isChunk, isMessage } from "../messages.mjs";
import { INTERRUPT } from "../outcome.mjs";
import { dumps, errorRecord, errorText, shortDumps } from "../serialization.mjs";
import { milliseconds as now, writeRequested } from "./log.mjs";
import { MessageBlocks } from "./messages.mjs";
import { channelOf, isValid } from "./transforming.mjs";

/** The modes for a reader that joins a run begun without protocol v2. */
const LATE_MODES = ["values", "updates"];

/** Writes the `lifecycle` events of one run's subgraphs. Those of the run itself are derived from its log. */
class SubgraphLives {
  #log;
  #begun = new Set([""]);
  #alive = new Map(); // by the subgraph's task: its namespace and name
  #toolCalls = new Map(); // task id → id of the model's tool call that it executes

  constructor(log) {
    this.#log = log;
  }

  hasBegun(ns) {
    return this.#begun.has(ns.join("|"));
  }

  /** Record that a task begins, which shows that its graph has begun. */
  noteTask(ns, task) {
    const call = toolCall(task.input);
    if (call !== null) {
      this.#toolCalls.set(task.id, call);
    }
    this.begin(ns, task.metadata?.lc_agent_name);
  }

  /** Write start events of this namespace and the namespaces around it, unless already written. */
  begin(ns, agent) {
    if (this.hasBegun(ns)) {
      return;
    }
    this.begin(ns.slice(0, -1));
    this.#begun.add(ns.join("|"));
    const [name, task] = ns.at(-1).split(":", 2);
    if (!task) {
      return; // the surrounding task uses a subgraph again, which has no lifecycle of its own
    }
    const life = { ns, graphName: agent ?? name };
    this.#alive.set(task, life);
    const call = this.#toolCalls.get(task);
    const cause = call === undefined ? {} : { cause: { type: "toolCall", tool_call_id: call } };
    this.#write(life, "started", { trigger_call_id: task, ...cause });
  }

  /** Record that a task has ended, and write the end event of its subgraph, if it is one. */
  endTask(task) {
    this.#toolCalls.delete(task.id);
    const life = this.#alive.get(task.id);
    this.#alive.delete(task.id);
    if (life === undefined) {
      return;
    }
    if (task.interrupts?.length) {
      this.#write(life, "interrupted");
    } else if (task.error) {
      this.#write(life, "failed", { error: errorText(task.error) });
    } else {
      this.#write(life, "completed");
    }
  }

  /** Write end events of the subgraphs whose tasks have not ended, as the run ends; the innermost first. */
  endAll(event, error) {
    const open = [...this.#alive.values()].sort((one, other) => other.ns.length - one.ns.length);
    const more = event === "failed" && error !== null ? { error } : {};
    open.forEach((life) => this.#write(life, event, more));
    this.#alive.clear();
  }

  #write({ ns, graphName }, event, more = {}) {
    const data = { event, namespace: ns, graph_name: graphName, ...more };
    this.#log.write("lifecycle", ns, dumps(data), { idTail: `lc|${ns.join("|")}|${event}` });
  }
}

/** Return the id of the tool call in a task's input. */
function toolCall(input) {
  const single = input?.tool_call ?? input?.lg_tool_call;
  const calls = Array.isArray(input) ? input : single ? [single] : [];
  const call = calls.find((each) => each && ["id", "name", "args"].every((name) => Object.hasOwn(each, name)));
  return typeof call?.id === "string" ? call.id : null;
}

/** Writes the events of protocol v2 of one run. `isLate` means that it begins during the run. */
export class ProtocolWriter {
  /** @type {import("./transforming.mjs").Transformers | null} */
  transformers = null;
  #log;
  #calls;
  #lives;
  #isLate;
  #held = new Map(); // by namespace: events that wait for its begin and for the checkpoint of its values
  #newest = new Map(); // by namespace: its values
  #interrupted = new Set(); // namespaces whose values have been written again at an interrupt
  #last; // the root's values after an interrupt, which are written last
  #raised = new Map(); // interrupt id → namespace of the task that raised it
  #messages = new Map();

  /**
   * @param {import("./log.mjs").ProtocolLog} log
   * @param {import("../model_calls.mjs").ModelCalls} calls
   * @param {{isLate?: boolean}} [options]
   */
  constructor(log, calls, { isLate = false } = {}) {
    this.#log = log;
    this.#calls = calls;
    this.#lives = new SubgraphLives(log);
    this.#isLate = isLate;
    calls.onStreamed((call) => this.#endCall(call));
  }

  /** The handlers of the graph's chunks, by stream mode. */
  get handlers() {
    const handlers = {
      values: (ns, payload) => this.#onValues(ns, payload),
      updates: (ns, payload) => this.#onUpdates(ns, payload),
      messages: (ns, payload) => this.#onMessage(ns, payload),
      custom: (ns, payload) => this.#onCustom(ns, payload),
      tasks: (ns, payload) => this.#onTask(ns, payload),
      checkpoints: (ns, payload) => this.#onCheckpoint(ns, payload),
      tools: (ns, payload) => this.#onTool(ns, payload),
    };
    return Object.entries(handlers).filter(([mode]) => !this.#isLate || LATE_MODES.includes(mode));
  }

  /** Write all held-back events at the end of the run. `event` is the last lifecycle event of the run. */
  close(event, error, interrupts) {
    const places = [...this.#held.values()].map(({ ns }) => ns);
    places.sort((one, other) => other.length - one.length).forEach((ns) => this.#release(ns));
    for (const key of [...this.#messages.keys()]) {
      this.#endMessage(key, event, error);
    }
    this.#lives.endAll(event, error?.message ?? null);
    writeRequested(this.#log, interrupts, this.#raised);
    if (this.#last !== undefined) {
      this.#write("values", [], this.#last, {}, shortDumps);
    }
  }

  /** Write the events that the graph's transformers add at the end. */
  async finishTransformers(error) {
    for (const event of (await this.transformers?.finish(error)) ?? []) {
      this.#ofTransformer(event).forEach((written) => this.#log.write(...written));
    }
  }

  /** Write an event with content, as the graph's transformers leave it. */
  #write(method, ns, data, more = {}, encode = dumps) {
    this.#written(method, ns, data, more, encode).forEach((each) => this.#log.write(...each));
  }

  /** Return the arguments with which the log writes an event, and those that the transformers add to it. */
  #written(method, ns, data, more, encode) {
    if (this.transformers === null) {
      return [[method, ns, encode(data), more]];
    }
    const { node, timestamp = now() } = more;
    // LangGraph has the node of an update in its data
    const shown = method === "updates" ? { node, values: data } : data;
    const params = { ...(node === undefined ? {} : { node }), timestamp, data: shown };
    return this.transformers.transform(method, ns, params).flatMap(({ event, isOwn }) => {
      if (isOwn) {
        return this.#ofTransformer(event);
      }
      if (!isValid(event)) {
        return [];
      }
      const { namespace, data: changed } = event.params;
      return [[method, namespace, encode(method === "updates" ? changed.values : changed), { ...more, timestamp }]];
    });
  }

  /** Return the same for an event of a transformer: an event of a named channel. Others are for readers in this process. */
  #ofTransformer(event) {
    const name = channelOf(event);
    const { namespace, data } = event.params;
    return name === undefined ? [] : [["custom", namespace, shortDumps({ name, payload: data }), { name }]];
  }

  // Messages

  /**
   * Stream messages of model calls and messages that a node pushes. A message that a node returns is not streamed, since
   * it is part of `values`.
   */
  #onMessage(ns, [message, metadata]) {
    if (!isMessage(message)) {
      return;
    }
    const call = this.#calls.callOf(message);
    if (call === undefined && this.#calls.isReturned(message)) {
      return;
    }
    const key = call?.runId ?? message.id ?? "";
    if (call !== undefined && (call.isReported || (call.produced && !isChunk(message)))) {
      return; // already sent as a whole message or in chunks
    }
    let streamed = this.#messages.get(key);
    if (streamed === undefined) {
      streamed = { blocks: new MessageBlocks(message), ns, node: metadata.langgraph_node, runId: key };
      this.#messages.set(key, streamed);
      this.#writeMessage(streamed, [streamed.blocks.begin(message, metadata)]);
    }
    this.#writeMessage(streamed, streamed.blocks.add(message));
    if (!isChunk(message)) {
      this.#endMessage(key);
      if (call !== undefined) {
        call.isReported = true;
      }
    }
  }

  /** End the message of a call whose chunks have all been streamed. */
  #endCall(call) {
    call.isReported = true;
    if (call.error === undefined) {
      this.#endMessage(call.runId);
    } else if (call.error?.name !== "AbortError") {
      this.#endMessage(call.runId, "failed", errorRecord(call.error)); // a cancelled call's message just stops
    }
  }

  /** @param {{error: string, message: string} | null} [error] */
  #endMessage(key, event = "completed", error = null) {
    const streamed = this.#messages.get(key);
    this.#messages.delete(key);
    if (streamed === undefined) {
      return;
    }
    if (event === "failed") {
      const details = { message: error?.message ?? null, code: error?.error ?? null };
      this.#writeMessage(streamed, [{ event: "error", ...details }]);
    } else if (event === "completed") {
      this.#writeMessage(streamed, streamed.blocks.finish());
    }
  }

  #writeMessage({ blocks, ns, node, runId }, events) {
    for (const event of events) {
      this.#write("messages", ns, { ...event, run_id: runId, message_id: blocks.id }, { node });
    }
  }

  // Events of steps

  #onValues(ns, payload) {
    const at = now();
    const place = ns.join("|");
    const isInterrupted = typeof payload === "object" && payload !== null && Object.hasOwn(payload, INTERRUPT);
    if (isInterrupted) {
      const isWritten = !payload[INTERRUPT].length || this.#interrupted.has(place) || !this.#newest.has(place);
      if (isWritten) {
        return;
      }
      this.#interrupted.add(place);
      payload = this.#newest.get(place);
    }
    this.#newest.set(place, payload);
    if (!ns.length && (isInterrupted || this.#last !== undefined)) {
      this.#last = payload;
      return;
    }
    const written = this.#written("values", ns, payload, { timestamp: at }, shortDumps);
    if (this.#isLate) {
      written.forEach((each) => this.#log.write(...each));
      return;
    }
    if (this.#lives.hasBegun(ns)) {
      this.#release(ns);
    }
    const held = this.#heldOf(ns);
    settle(held);
    held.values = written;
  }

  /** Write a checkpoint before its step's values, although LangGraph streams it after them. */
  #onCheckpoint(ns, payload) {
    if (payload.config === undefined) {
      return; // the envelope of the library's own stream
    }
    const held = this.#heldOf(ns);
    held.ready.push(...this.#written("checkpoints", ns, checkpointOf(payload), { timestamp: now() }, dumps));
    settle(held);
    if (this.#lives.hasBegun(ns)) {
      this.#release(ns);
    }
  }

  #heldOf(ns) {
    const place = ns.join("|");
    if (!this.#held.has(place)) {
      this.#held.set(place, { ns, ready: [], values: null });
    }
    return this.#held.get(place);
  }

  #release(ns) {
    const held = this.#held.get(ns.join("|"));
    if (held === undefined) {
      return;
    }
    this.#held.delete(ns.join("|"));
    this.#lives.begin(ns);
    settle(held);
    held.ready.forEach((written) => this.#log.write(...written));
  }

  #onTask(ns, payload) {
    const timestamp = now();
    if (Object.hasOwn(payload, "result")) {
      for (const item of payload.interrupts ?? []) {
        if (!this.#raised.has(item.id)) {
          this.#raised.set(item.id, ns); // the innermost task ends first
        }
      }
      const isInside = ({ ns: inner }) =>
        inner.length > ns.length && ns.every((part, depth) => part === inner[depth]) &&
        inner[ns.length].split(":", 2)[1] === payload.id;
      [...this.#held.values()].filter(isInside).forEach(({ ns: inner }) => this.#release(inner));
      this.#lives.endTask(payload);
    } else {
      this.#lives.noteTask(ns, payload);
      this.#release(ns);
    }
    this.#write("tasks", ns, taskOf(payload), { timestamp });
  }

  /** Write one event per node. Skips LangGraph's internal keys, whose content is sent in other events. */
  #onUpdates(ns, payload) {
    const timestamp = now();
    for (const [node, output] of Object.entries(updatesOf(payload))) {
      if (!node.startsWith("__")) {
        this.#write("updates", ns, output, { node, timestamp }, shortDumps);
      }
    }
  }

  /** Write a custom event. An object with a `name` is written unchanged, to the channel of that name. */
  #onCustom(ns, payload) {
    const name = typeof payload === "object" && payload !== null ? payload.name : null;
    if (typeof name === "string" && name) {
      this.#write("custom", ns, payload, { name });
    } else {
      this.#write("custom", ns, { payload: payload ?? null });
    }
  }

  /** Write an event of a tool call with the names of LangGraph for Python. */
  #onTool(ns, { event, toolCallId, name, input, data, output, error }) {
    const common = { tool_call_id: toolCallId ?? null };
    const written = {
      on_tool_start: () => ({ event: "tool-started", ...common, tool_name: name, input: inputOf(input) }),
      on_tool_event: () => ({
        event: "tool-output-delta", ...common, delta: typeof data === "string" ? data : dumps(data),
      }),
      on_tool_end: () => ({ event: "tool-finished", ...common, output }),
      on_tool_error: () => ({ event: "tool-error", ...common, message: masked(errorText(error)) }),
    }[event];
    if (written !== undefined) {
      this.#write("tools", ns, written());
    }
  }
}

/** Return the input of a tool, which LangChain passes to callbacks as its JSON. */
function inputOf(input) {
  try {
    return typeof input === "string" ? JSON.parse(input) : input;
  } catch {
    return input;
  }
}

/** Release the values of a namespace, since their checkpoint has arrived or will not arrive. */
function settle(held) {
  if (held.values !== null) {
    held.ready.push(...held.values);
    held.values = null;
  }
}

function checkpointOf({ config, parentConfig, metadata }) {
  return {
    id: config?.configurable?.checkpoint_id ?? null,
    parent_id: parentConfig?.configurable?.checkpoint_id ?? null,
    step: metadata?.step ?? null,
    source: metadata?.source ?? null,
  };
}
