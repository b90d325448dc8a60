/**
 * Conversion of the chunks of a graph's stream to EVENT frames, with the names and shapes of the deployment API.
 *
 * LangGraph for JavaScript gives some chunks other shapes and another order than LangGraph for Python. The handlers here
 * make them equal, since a client must not be able to tell which host has executed a run.
 */

import {
  checkpointOf, emptied, isHandover, isInterrupted, messageMetadata, streamed, taskOf, updatesOf, withCheckpoint,
} from "./chunks.mjs";
import * as frames from "./frames.mjs";
import { isChunk, isMessage, record, streamedRecord } from "./messages.mjs";
import { ModelCalls } from "./model_calls.mjs";
import { INTERRUPT, coordinates } from "./outcome.mjs";
import { PROTOCOL, ProtocolLog } from "./protocol/log.mjs";
import { ProtocolWriter } from "./protocol/writer.mjs";
import { dumps, errorText } from "./serialization.mjs";

const { byteLength } = Buffer;
const { setImmediate } = globalThis;
const { now } = Date;
const { hasOwn } = Object;

// Modes requested from LangGraph without a reader, since a reader may join later.
const UNREAD = ["updates"];

/**
 * The events requested of a run: by its creator, and by readers that joined before it began (`joined`). A creator that
 * requests both forms of messages gets only tuples.
 */
export function streamRequest(spec) {
  const requested = spec.stream_mode ?? ["values"];
  const creator = new Set(typeof requested === "string" ? [requested] : requested);
  const { joined } = spec;
  const added = new Set(joined?.stream_mode ?? []);
  const modes = creator.union(added);
  return {
    modes,
    subgraphs: Boolean(spec.subgraphs || joined?.subgraphs || modes.has(PROTOCOL)),
    // send messages as their text so far; another reader may request tuples besides
    partialMessages: (creator.has("messages") && !creator.has("messages-tuple")) || added.has("messages"),
    traced: Boolean(spec.traced), // report calls to the runner
    // … and nodes. With the mode `events` they are not known
    reportsNodes: Boolean(spec.traced) && !modes.has("events"),
  };
}

/** Whether a chunk announces a task that begins. */
function beginsTask(mode, payload) {
  return (mode === "tasks" && !(hasOwn(payload, "result"))) || (mode === "debug" && payload.type === "task");
}

/** Writes the events of one run, and remembers its newest `values`. */
export class EventWriter {
  /** @type {any} the newest `values` that callers see */
  shown = undefined;
  /** @type {string | null} */
  shownJson = null;
  showsState = true; // whether `shown` is the whole state
  states = 0; // number of states seen so far: the initial one, and one per step
  isClosed = false;
  calls = new ModelCalls();
  /** @type {ProtocolWriter | null} */
  protocol = null;
  /** @type {import("./protocol/transforming.mjs").Transformers | null} */
  #transformers = null;
  #connection;
  #id;
  #modes;
  #maxBytes;
  #showsSubgraphs;
  #handlers = new Map();
  #unread = new Map();
  #held = new Map(); // by namespace: the interrupts of this step in `updates` and `values`
  #replayed = []; // `updates` of tasks that ended in an earlier run, until the tasks of this step have begun
  #values = new Map(); // by namespace: the newest values
  #described = new Set(); // messages whose metadata has been sent
  #partial = new Map(); // by message, its chunks so far
  /** @type {Map<string, string[]> | null} running subgraphs by the id of their task */
  #alive = null;

  /**
   * @param {import("./connection.mjs").Connection} connection
   * @param {string} id of the run
   * @param {ReturnType<typeof streamRequest>} request
   * @param {number} maxBytes of an event
   */
  constructor(connection, id, request, maxBytes) {
    this.#connection = connection;
    this.#id = id;
    this.#modes = request.modes;
    this.#maxBytes = maxBytes;
    this.#showsSubgraphs = request.subgraphs;
    this.#addHandlers(request);
    if (this.#modes.has(PROTOCOL)) {
      this.#joinProtocol(new ProtocolWriter(this.protocolLog(), this.calls));
    }
  }

  #addHandlers({ partialMessages, subgraphs, reportsNodes }) {
    const optional = {
      updates: this.#onUpdates,
      custom: (ns, payload) => this.emit("custom", ns, dumps(payload)),
      tasks: this.#onPlainTask,
      checkpoints: this.#onCheckpoint,
      debug: this.#onDebug,
      tools: this.#onTool,
    };
    const handlers = this.#handlers.set("values", this.#onValues);
    for (const [mode, handler] of Object.entries(optional)) {
      if (this.#modes.has(mode)) {
        handlers.set(mode, handler);
      }
    }
    if (this.#modes.has("messages-tuple")) {
      const both = [this.#onMessage, this.#onMessageTuple];
      handlers.set("messages", this.#ofCalls(partialMessages ? both : [this.#onMessageTuple]));
    } else if (this.#modes.has("messages")) {
      handlers.set("messages", this.#ofCalls([this.#onMessage]));
    }
    if (this.#modes.has("lifecycle") && subgraphs) {
      this.#alive = new Map();
      handlers.set("tasks", this.#onTask);
    }
    if (reportsNodes) {
      this.#add("tasks", this.#onTraced);
    }
    // A reader may request these modes during the run. With the mode `events` they are not requested in advance, because
    // LangChain's event stream would contain their chunks.
    if (!this.#modes.has("events")) {
      UNREAD.filter((mode) => !handlers.has(mode)).forEach((mode) => this.#unread.set(mode, optional[mode]));
    }
  }

  /** The modes to request from LangGraph. Always includes `values`: waiting callers receive the last ones. */
  get graphModes() {
    return [...new Set([...this.#handlers.keys(), ...this.#unread.keys()])];
  }

  /**
   * Whether to request the chunks of subgraphs from LangGraph. Without them it gives a subgraph's custom events the place of
   * the root's.
   */
  get needsSubgraphs() {
    return this.#showsSubgraphs || this.#modes.has("custom");
  }

  /**
   * The newest values without interrupts. LangGraph's own output of an interrupted run lacks those of the last step's
   * tasks.
   */
  get output() {
    const { [INTERRUPT]: _, ...output } = this.shown ?? {};
    return isInterrupted(this.shown) ? output : this.shown;
  }

  /** Declare that `values` contain only the keys of the graph's output schema. Called before the first chunk. */
  showPart() {
    this.shown = {};
    this.showsState = false;
  }

  /** Return a log for events of protocol v2, which writes into this run's events. */
  protocolLog() {
    return new ProtocolLog((name, data) => this.#send(name, data), this.#maxBytes);
  }

  /** Begin to write events of these modes. Ignores modes that were not requested from LangGraph. */
  widen(modes) {
    if (modes.includes(PROTOCOL) && this.protocol === null) {
      this.#joinProtocol(new ProtocolWriter(this.protocolLog(), this.calls, { isLate: true }));
    }
    for (const mode of modes) {
      const handler = this.#unread.get(mode);
      if (handler !== undefined) {
        this.#unread.delete(mode);
        this.#add(mode, handler);
      }
      if (this.#handlers.has(mode)) {
        this.#modes = this.#modes.union(new Set([mode]));
      }
    }
  }

  /** Write the events of one chunk of the graph's stream. */
  write(ns, mode, payload) {
    if (mode === "updates" && payload?.__metadata__?.cached) {
      this.#replayed.push([ns, payload]);
      setImmediate(() => this.#writeReplayed()); // LangGraph announces the tasks of the step before it
      return;
    }
    if (!beginsTask(mode, payload)) {
      this.#writeReplayed();
    }
    this.#write(ns, mode, payload);
  }

  #writeReplayed() {
    for (const [ns, payload] of this.#replayed.splice(0)) {
      this.#write(ns, "updates", payload);
    }
  }

  #write(ns, mode, payload) {
    if (ns.length && this.#alive !== null) {
      this.#beginSubgraphs(ns);
    }
    if (mode === "messages") {
      this.calls.count(payload[0]);
    }
    const isShown = !ns.length || this.#showsSubgraphs;
    if (isShown && !isHandover(mode, payload)) {
      this.#handlers.get(mode)?.call(this, ns, payload);
    }
    if (mode === "messages") {
      this.calls.settle();
    }
  }

  /** Send one event. Replaces an event that is too large with an error event. */
  emit(name, ns, data) {
    const size = data.length > this.#maxBytes / 4 ? byteLength(data) : data.length;
    if (size > this.#maxBytes) {
      const message = `${name} event of ${size} bytes: the limit is ${this.#maxBytes} bytes`;
      this.#send("error", dumps({ error: "EventTooLarge", message }));
    } else {
      this.#send(ns.length ? [name, ...ns].join("|").replaceAll("\n", " ") : name, data);
    }
  }

  #send(name, data) {
    if (!this.isClosed) {
      this.#connection.send(frames.EVENT, this.#id, `${name}\n${data}`);
    }
  }

  /** Send the interrupts that were held back: one event per namespace and mode, after the step's other events. */
  finish() {
    this.#writeReplayed();
    for (const { ns, updates, values } of this.#held.values()) {
      if (updates !== undefined && this.#modes.has("updates")) {
        this.emit("updates", ns, dumps({ [INTERRUPT]: updates }));
      }
      if (values !== undefined) {
        const state = this.#values.get(ns.join("|"));
        const isObject = typeof state === "object" && state !== null && !Array.isArray(state);
        this.#writeValues(ns, { ...(isObject ? state : {}), [INTERRUPT]: values });
      }
    }
    this.#held.clear();
  }

  #add(mode, handler) {
    const earlier = this.#handlers.get(mode);
    const both = (ns, payload) => {
      earlier.call(this, ns, payload);
      handler.call(this, ns, payload);
    };
    this.#handlers.set(mode, earlier === undefined ? handler : both);
  }

  /** Pass the events of protocol v2 through the graph's transformers. */
  useTransformers(transformers) {
    this.#transformers = transformers;
    if (this.protocol !== null) {
      this.protocol.transformers = transformers;
    }
  }

  /** Add the writer of protocol v2 to the handlers of LangGraph's chunks. */
  #joinProtocol(writer) {
    this.protocol = writer;
    writer.transformers = this.#transformers;
    for (const [mode, handler] of writer.handlers) {
      this.#add(mode, handler);
    }
  }

  #onValues(ns, payload) {
    if (isInterrupted(payload)) {
      this.#hold(ns, "values", payload);
      return;
    }
    this.#values.set(ns.join("|"), payload);
    if (this.#held.get(ns.join("|"))?.values === undefined) {
      this.#writeValues(ns, payload);
    }
  }

  #writeValues(ns, payload) {
    const data = this.#modes.has("values") ? dumps(payload) : null;
    if (data !== null) {
      this.emit("values", ns, data);
    }
    if (!ns.length) {
      this.shown = payload;
      this.shownJson = data;
      this.states++;
    }
  }

  #onUpdates(ns, payload) {
    if (isInterrupted(payload) && payload[INTERRUPT].length) {
      this.#hold(ns, "updates", payload);
    } else {
      this.emit("updates", ns, dumps(updatesOf(payload)));
    }
  }

  /** Hold back interrupts until the step ends, because all interrupts of a step share one event. */
  #hold(ns, mode, payload) {
    if (!payload[INTERRUPT].length) {
      return; // a breakpoint, which has no `values`
    }
    const place = ns.join("|");
    const held = this.#held.get(place) ?? { ns };
    this.#held.set(place, held);
    const earlier = held[mode] ?? [];
    const known = new Set(earlier.map((item) => item.id));
    held[mode] = [...earlier, ...payload[INTERRUPT].filter(({ id }) => !known.has(id)).map(streamed)];
  }

  /**
   * Return a handler of messages that also writes the last chunk of each model call. A chunk that comes from no call is a
   * whole message: the answer of a model whose stream is hidden, which a node has returned.
   */
  #ofCalls(handlers) {
    const write = (ns, message, metadata, isPart, isLast = false) => {
      handlers.forEach((handler) => handler.call(this, ns, message, metadata, isPart, isLast));
    };
    const written = new Map(); // by call: how to write its last chunk
    this.calls.onStreamed((call) => {
      if (call.error === undefined) {
        written.get(call)?.();
      }
      written.delete(call);
    });
    return (ns, [message, metadata]) => {
      const call = this.calls.callOf(message);
      const isPart = call !== undefined && isChunk(message);
      write(ns, message, metadata, isPart);
      if (isPart) {
        written.set(call, () => write(ns, emptied(message), metadata, true, true));
      }
    };
  }

  #onMessageTuple(ns, message, metadata, isPart, isLast) {
    const shown = isPart ? streamedRecord(message, isLast) : message;
    this.emit("messages", ns, dumps([shown, messageMetadata(metadata)]));
  }

  #onMessage(ns, message, metadata, isPart) {
    if (!isMessage(message)) {
      return;
    }
    const id = message.id ?? "";
    if (!this.#described.has(id)) {
      this.#described.add(id);
      this.emit("messages/metadata", ns, dumps({ [id]: { metadata: messageMetadata(metadata) } }));
    }
    if (!isPart) {
      this.emit("messages/complete", ns, dumps([message]));
      return;
    }
    const earlier = this.#partial.get(id);
    const whole = earlier === undefined ? message : earlier.concat(message);
    this.#partial.set(id, whole);
    this.emit("messages/partial", ns, dumps([record(whole)]));
  }

  #onTool(ns, payload) {
    const { event, toolCallId, name, ...rest } = payload;
    if (hasOwn(rest, "error")) {
      rest.error = errorText(rest.error);
    }
    const [[part, value] = ["data", null]] = Object.entries(rest);
    this.emit("tools", ns, dumps({ event, toolCallId, name, [part]: value ?? null }));
  }

  #onPlainTask(ns, payload) {
    this.emit("tasks", ns, dumps(taskOf(payload)));
  }

  /** Write a task event. A task that ends also ends its subgraph, if it is one. */
  #onTask(ns, payload) {
    if (this.#modes.has("tasks")) {
      this.#onPlainTask(ns, payload);
    }
    const inner = hasOwn(payload, "result") ? this.#alive?.get(payload.id) : undefined;
    if (inner === undefined) {
      return;
    }
    this.#alive?.delete(payload.id);
    if (payload.error) {
      this.#writeLifecycle(inner, "failed", errorText(payload.error));
    } else {
      this.#writeLifecycle(inner, payload.interrupts?.length ? "interrupted" : "completed");
    }
  }

  /** Report to the runner that a node begins or ends. The runner creates a span from it. */
  #onTraced(ns, payload) {
    const frame = {
      id: payload.id,
      name: payload.name,
      within: ns.length ? ns.at(-1).slice(ns.at(-1).lastIndexOf(":") + 1) : null,
      at: now() / 1000,
      ended: hasOwn(payload, "result"),
      error: payload.error ? errorText(payload.error) : null,
    };
    this.#connection.send(frames.NODE, this.#id, dumps(frame));
  }

  #beginSubgraphs(ns) {
    ns.forEach((part, depth) => {
      const task = part.slice(part.lastIndexOf(":") + 1);
      if (this.#alive !== null && !this.#alive.has(task)) {
        this.#alive.set(task, ns.slice(0, depth + 1));
        this.#writeLifecycle(ns.slice(0, depth + 1), "started");
      }
    });
  }

  /** Write end events of the subgraphs whose tasks have not ended, as the run ends; the innermost first. */
  endSubgraphs(event) {
    const open = [...(this.#alive?.values() ?? [])].sort((one, other) => other.length - one.length);
    open.forEach((ns) => this.#writeLifecycle(ns, event));
    this.#alive = null;
  }

  #writeLifecycle(ns, event, error) {
    this.emit("lifecycle", ns, dumps({ event, namespace: ns, error }));
  }

  #onCheckpoint(ns, payload) {
    this.emit("checkpoints", ns, dumps(checkpointOf(payload)));
  }

  #onDebug(ns, payload) {
    let inner = payload.payload;
    if (payload.type === "checkpoint") {
      const { config, parent_config: parent, tasks, ...rest } = checkpointOf(inner);
      inner = {
        config, parent_config: parent, ...rest,
        tasks: tasks.map(withCheckpoint),
        checkpoint: coordinates(config),
        parent_checkpoint: coordinates(parent),
      };
    } else {
      inner = taskOf(inner);
    }
    this.emit("debug", ns, dumps({ ...payload, payload: inner }));
  }
}
