/** Execution of one run, from its RUN frame to its DONE frame. */

import { NodeTimes } from "./checkpoints/node_times.mjs";
import { RunCheckpoints, configured } from "./checkpoints/run_checkpoints.mjs";
import { MemoryStorage, Storage } from "./checkpoints/storage.mjs";
import { CallRecords } from "./call_records.mjs";
import { namespaceOf } from "./chunks.mjs";
import { storage as currentStorage } from "./current.mjs";
import { EventWriter, streamRequest } from "./events.mjs";
import * as frames from "./frames.mjs";
import {
  AUTH_USER, MissingNodeError, UnknownInterruptError, checkResume, commandOf, configurableOf, contextOf, defined, isResumeMap,
  queryConfig, runConfig, runMetadata, tracerOf,
} from "./inputs.mjs";
import { parseDocument } from "./json.mjs";
import { LibraryEvents } from "./library_events.mjs";
import { RUN } from "./loading.mjs";
import { Outcome, readState, stateRecord } from "./outcome.mjs";
import { LOGGER, userStack } from "./output.mjs";
import { PROTOCOL, answeredInterrupts, waitingInterrupts, writeAnswered, writeRequested } from "./protocol/log.mjs";
import { install } from "./replays/interception.mjs";
import { Transformers } from "./protocol/transforming.mjs";
import { Replay } from "./replays/replay.mjs";
import { dumps, errorRecord, loads } from "./serialization.mjs";
import { CallTimes } from "./spans.mjs";

const { byteLength } = Buffer;
const { setTimeout, AbortController } = globalThis;

// How long a cancelled node may continue before the run ends without it.
const GIVE_UP_MS = 5_000;

/** The graph was started without input. */
class EmptyInputError extends Error {
  name = "EmptyInputError";
}

/** LangGraph for Python would refuse the run with this error. */
class RuntimeError extends Error {
  name = "RuntimeError";
}

/**
 * What all runs of a host share.
 *
 * @typedef {object} Shared
 * @property {import("./connection.mjs").Connection} connection
 * @property {import("./output.mjs").Limiter} limiter
 * @property {import("./checkpoints/serializer.mjs").Serializer} serializer
 * @property {any} saver
 * @property {import("./libraries.mjs").Library} library
 * @property {any} LangChainTracer
 * @property {Record<string, string>} versions
 * @property {{eventBytes: number, stateBytes: number, checkpointBytes: number}} limits
 */

/** A run in progress. The DONE frame is sent exactly once. */
export class Execution {
  #shared;
  #entry;
  #id;
  #spec;
  #input;
  #metadata;
  #checkpoints;
  #request;
  #events;
  #records;
  #usage;
  #current;
  #abort = new AbortController();
  #isCancelled = false;
  #isDone = false;
  #graph = null;

  /**
   * @param {Shared} shared
   * @param {import("./loading.mjs").LoadedGraph} entry
   * @param {string} id
   * @param {any} spec
   * @param {Buffer} input
   * @param {Buffer[]} stored the thread's newest stored checkpoint
   */
  constructor(shared, entry, id, spec, input, stored) {
    const { connection, versions, limits } = shared;
    this.#shared = shared;
    this.#entry = entry;
    this.#id = id;
    this.#spec = spec;
    this.#input = input;
    this.#metadata = runMetadata(spec, versions.langgraph);
    const times = spec.temporary ? null : new NodeTimes();
    this.#checkpoints = this.#makeCheckpoints(stored, times);
    this.#request = streamRequest(spec);
    this.#events = new EventWriter(connection, id, this.#request, limits.eventBytes);
    this.#records = this.#makeRecords();
    const report = (total) => connection.send(frames.USED, id, `${total} ${JSON.stringify(this.#usage.byModel())}`);
    this.#usage = new CallTimes(times, report, this.#records);
    this.#current = { __proto__: null, id, isRun: true, checkpoints: this.#checkpoints, user: configurableOf(spec)[AUTH_USER] };
    if (spec.replay) {
      this.#current.replay = new Replay(spec.replay, shared.serializer, shared.library, entry.langgraph);
    }
  }

  /** Execute the run. Never rejects. */
  start() {
    return currentStorage.run(this.#current, () => this.#run());
  }

  /** Cancel the run. If a node ignores the cancellation, the run ends without it. */
  cancel() {
    if (this.#isCancelled) {
      return;
    }
    this.#isCancelled = true;
    this.#abort.abort();
    setTimeout(() => this.#giveUp(), GIVE_UP_MS).unref();
  }

  /** Begin to send events of these stream modes, as far as LangGraph was asked for them. */
  widen(modes) {
    this.#events.widen(modes);
  }

  /** End the run with an error that occurred outside of its promises. */
  fail(error) {
    if (!this.#isDone) {
      currentStorage.run(this.#current, () => this.#finish(new Outcome("error", errorRecord(error))));
    }
  }

  #makeCheckpoints(stored, times) {
    const spec = this.#spec;
    const isTemporary = Boolean(spec.temporary);
    const newest = stored.length && parseDocument(stored[0]).found ? stored : null;
    return new RunCheckpoints({
      threadId: String(spec.thread_id),
      storage: isTemporary
        ? new MemoryStorage()
        : new Storage(this.#shared.connection, this.#id, String(spec.thread_id)),
      serializer: this.#shared.serializer,
      metadata: { user_id: "", ...configured(configurableOf(spec)), ...this.#metadata },
      waits: spec.durability === "sync" && !isTemporary,
      isFresh: isTemporary || Boolean(spec.fresh) || (stored.length > 0 && newest === null),
      newest,
      times,
    });
  }

  /** Return the sender of call records of a traced run; null for another run. */
  #makeRecords() {
    const { traced, reportsNodes, subgraphs } = this.#request;
    const send = (body) => this.#shared.connection.send(frames.CALL, this.#id, body);
    return traced ? new CallRecords(send, { hasNodes: reportsNodes, hasSubgraphs: subgraphs }) : null;
  }

  async #run() {
    let outcome;
    try {
      if (this.#current.replay !== undefined) {
        await install(this.#shared.library.core);
      }
      if (!this.#isCancelled) {
        await this.#streamGraph();
      }
      outcome = new Outcome(this.#isCancelled ? "cancelled" : "success");
    } catch (error) {
      outcome = this.#isCancelled ? new Outcome("cancelled") : new Outcome("error", errorRecord(error));
      outcome.keepsThread = error instanceof UnknownInterruptError;
      if (!this.#isCancelled && !outcome.keepsThread && !this.#isDone) {
        this.#shared.limiter.emit("ERROR", LOGGER, `run failed\n${userStack(error)}`, this.#id);
      }
    }
    await this.#finish(outcome);
  }

  async #streamGraph() {
    const config = runConfig(this.#spec, this.#metadata);
    const graph = await this.#entry.open(config, RUN, contextOf(this.#spec));
    this.#graph = graph;
    await this.#checkResume(graph, config);
    await this.#sendAnswers(config);
    const events = this.#events;
    this.#useTransformers(graph.streamTransformers ?? []);
    if (!showsState(graph)) {
      events.showPart();
    }
    if (this.#request.modes.has("lifecycle")) {
      events.emit("lifecycle", [], dumps({ event: "started", namespace: [] }));
    }
    this.#countAllCalls();
    const options = this.#options(graph, config);
    const stream = this.#request.modes.has("events") ? this.#withLibraryEvents : this.#plain;
    for await (const [ns, mode, payload] of stream.call(this, graph, options)) {
      events.write(namespaceOf(ns, mode, payload, this.#shared.versions.langgraph), mode, payload);
      if (this.#shared.connection.isFull) {
        await this.#shared.connection.drained();
      }
    }
    this.#checkpoints.isOver = true;
    events.finish();
  }

  /** Count the model calls to which user code passes callbacks of its own, which replace those of the run, as well. */
  #countAllCalls() {
    const { registerConfigureHook, setContextVariable } = this.#shared.library.context;
    registerConfigureHook({ contextVar: this.#usage.name });
    setContextVariable(this.#usage.name, this.#usage);
  }

  #useTransformers(factories) {
    if (!factories.length) {
      return;
    }
    const report = (text, error) =>
      this.#shared.limiter.emit("WARNING", LOGGER, `${text}: ${userStack(error)}`, this.#id);
    const transformers = new Transformers(factories, report);
    if (!transformers.isEmpty) {
      this.#events.useTransformers(transformers);
    }
  }

  /**
   * Refuse a resume without state or without the waiting node, and a strict one that matches no interrupt.
   *
   * LangGraph would otherwise start the graph without input, or drop the answer to a node that another revision of the
   * graph had. A resume from a given checkpoint is allowed: it runs the interrupted step of that checkpoint again.
   */
  async #checkResume(graph, config) {
    const { command, resume_from_checkpoint: fromCheckpoint, strict_resume: isStrict } = this.#spec;
    const resume = command?.resume ?? null;
    if (resume === null || fromCheckpoint) {
      return;
    }
    if (this.#checkpoints.isFresh && !isStrict && Object.keys(command).length === 1) {
      throw new EmptyInputError("There is nothing to resume on a thread without state");
    }
    const record = stateRecord(await graph.getState(config), this.#checkpoints);
    if (!record.tasks.length && !command.goto && (await waitingInterrupts(this.#shared.saver, config)).length) {
      throw new MissingNodeError();
    }
    if (isStrict && !config.configurable.checkpoint_id) {
      checkResume(resume, record);
    }
  }

  /**
   * Write events that mark the interrupts answered by this run's resume. Other clients that have the thread open then know
   * that these interrupts need no answer any more.
   *
   * Throws RuntimeError, as LangGraph for Python does, if one value would answer several interrupts.
   */
  async #sendAnswers(config) {
    const { command, temporary, resume_from_checkpoint: fromCheckpoint } = this.#spec;
    const resume = command?.resume ?? null;
    if (resume === null || temporary || fromCheckpoint) {
      return;
    }
    const answered = await answeredInterrupts(this.#shared.saver, config, resume);
    if (answered.length > 1 && !isResumeMap(resume)) {
      throw new RuntimeError(
        "When there are multiple pending interrupts, you must specify the interrupt id when resuming. " +
          "Docs: https://docs.langchain.com/oss/javascript/langgraph/interrupts",
      );
    }
    writeAnswered(this.#events.protocolLog(), answered);
  }

  #options(graph, config) {
    const spec = this.#spec;
    let durability = spec.durability ?? "async";
    if (spec.temporary && !["checkpoints", "debug", PROTOCOL].some((mode) => this.#request.modes.has(mode))) {
      // No client reads the checkpoints in between, and one checkpoint at the end is cheaper.
      durability = "exit";
      this.#checkpoints.skipsRoot = !hasChanges(graph);
    }
    /** @type {object[]} */
    const callbacks = [this.#usage];
    if (this.#events.graphModes.includes("messages")) {
      callbacks.push(this.#events.calls);
    }
    const tracer = tracerOf(spec.langsmith_tracer, this.#shared.LangChainTracer);
    if (tracer !== undefined) {
      callbacks.push(tracer);
    }
    return defined({
      ...config,
      callbacks,
      signal: this.#abort.signal,
      streamMode: this.#events.graphModes,
      subgraphs: this.#events.needsSubgraphs,
      interruptBefore: spec.interrupt_before ?? undefined,
      interruptAfter: spec.interrupt_after ?? undefined,
      durability,
      context: contextOf(spec),
      outputKeys: graph.outputChannels,
    });
  }

  async *#plain(graph, options) {
    for await (const chunk of await graph.stream(this.#graphInput(), options)) {
      // LangGraph 1.0 gives the root's namespace an empty name after a fork.
      yield options.subgraphs ? [chunk[0].filter(Boolean), ...chunk.slice(1)] : [[], ...chunk];
    }
  }

  /** Yield the chunks of the graph's stream, taken from LangChain's event stream, and write its other events. */
  async *#withLibraryEvents(graph, options) {
    const root = this.#spec.run_id;
    const library = new LibraryEvents(root);
    const callbacks = [...options.callbacks, library];
    const stream = graph.streamEvents(this.#graphInput(), { ...options, callbacks, version: "v2" });
    for await (const event of stream) {
      if (event.run_id === root && event.event === "on_chain_stream") {
        yield options.subgraphs ? event.data.chunk : [[], ...event.data.chunk];
        continue;
      }
      if (event.run_id === root && event.event === "on_chain_end") {
        this.#events.finish(); // the graph's end is its last event
        event.data.output = this.#events.output ?? event.data.output;
      }
      library.converted(event).forEach((shown) => this.#events.emit("events", [], dumps(shown)));
    }
  }

  #graphInput() {
    const { command, resume_from_checkpoint: fromCheckpoint } = this.#spec;
    if (fromCheckpoint) {
      return null;
    }
    return command ? commandOf(command, this.#entry.langgraph) : loads(this.#input);
  }

  #giveUp() {
    if (!this.#isDone) {
      const text = "a node ignored the cancellation of its run: going on without it";
      this.#shared.limiter.emit("WARNING", LOGGER, text, this.#id);
      currentStorage.run(this.#current, () => this.#finish(new Outcome("cancelled")));
    }
  }

  async #finish(outcome) {
    if (this.#isDone) {
      return;
    }
    this.#isDone = true;
    this.#checkpoints.isOver = true;
    try {
      await this.#addState(outcome);
    } catch (error) {
      // reading the state runs user code: reducers and schemas
      const text = `the state after the run could not be read\n${userStack(error)}`;
      this.#shared.limiter.emit("ERROR", LOGGER, text, this.#id);
      if (outcome.status === "success") {
        outcome.fail(errorRecord(error));
      }
      outcome.unchanged = true;
    }
    await this.#events.protocol?.finishTransformers(outcome.status === "success" ? undefined : outcome.error);
    this.#report(outcome);
  }

  async #addState(outcome) {
    if (this.#graph === null || outcome.keepsThread) {
      outcome.unchanged = true;
      return;
    }
    outcome.useSnapshot(await readState(this.#graph, queryConfig(this.#spec)), this.#checkpoints);
  }

  /** Send the last events and DONE. */
  #report(outcome) {
    const events = this.#events;
    const size = byteLength(outcome.values);
    if (size > this.#shared.limits.stateBytes) {
      const message = `state of ${size} bytes: the limit is ${this.#shared.limits.stateBytes} bytes`;
      outcome.fail({ error: "StateTooLarge", message });
      Object.assign(outcome, { values: "null", unchanged: true });
    }
    events.endSubgraphs(outcome.lifecycle().event);
    this.#endProtocol(outcome);
    if (outcome.status === "error") {
      events.emit("error", [], dumps(outcome.error));
    }
    if (this.#request.modes.has("lifecycle")) {
      events.emit("lifecycle", [], dumps(outcome.lifecycle()));
    }
    events.isClosed = true;
    this.#checkpoints.close();
    outcome.usage = this.#usage.byModel();
    outcome.nodeUsage = this.#usage.byNode();
    outcome.firstTokenAgo = this.#usage.firstTokenAgo();
    outcome.spans = this.#usage.document(outcome.unfinishedTasks());
    this.#records?.close(outcome.status === "cancelled" ? "cancelled" : "unfinished");
    const shownJson = events.shownJson ?? (events.showsState ? null : dumps(events.shown));
    const answer = outcome.answer(events.shown, shownJson);
    this.#shared.limiter.forget(this.#id);
    this.#current.isOver = true;
    outcome.replay = this.#current.replay?.report() ?? null;
    const parts = [dumps(outcome.document()), outcome.values, answer];
    this.#shared.connection.send(frames.DONE, this.#id, frames.pack(parts));
  }

  /** Write the open interrupts as events of protocol v2, also if no reader of that protocol was there so far. */
  #endProtocol(outcome) {
    const interrupts = this.#spec.temporary ? [] : outcome.waitingInterrupts;
    if (this.#events.protocol !== null) {
      this.#events.protocol.close(outcome.lifecycle().event, outcome.error, interrupts);
    } else {
      writeRequested(this.#events.protocolLog(), interrupts);
    }
  }
}

/** Whether a graph has channels that are stored as their changes. LangGraph rebuilds these from several checkpoints. */
function hasChanges({ channels }) {
  return Object.values(channels).some((channel) => channel.lc_graph_name === "DeltaChannel");
}

/** Whether a graph's output contains its whole state. */
function showsState({ outputChannels: output, streamChannelsAsIs: state }) {
  return Array.isArray(output) && Array.isArray(state) ? state.every((name) => output.includes(name)) : output === state;
}
