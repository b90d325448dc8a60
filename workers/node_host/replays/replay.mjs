/**
 * The replay of one run: answers to its tool and model calls, and the report about them.
 *
 * `workers/graph_host/replays/replay.py` documents the rules of a replay and its recording.
 */

import { createHash } from "node:crypto";

import { isMessage, typeOf } from "../messages.mjs";
import { dumps, loads } from "../serialization.mjs";
import { StoreOverlay } from "./overlay.mjs";

const { isArray } = Array;
const MAX_REPORTED = 100; // entries of each list of the report
const MAX_ARGS_LENGTH = 2_000; // characters of the arguments of an unrecorded call in the report

/** The rules, the recording and the report of one replayed run. */
export class Replay {
  #serializer;
  #library;
  #langgraph;
  #areToolsLive;
  #liveTools;
  #tools = new Answers();
  #models = new Answers();
  #byId = new Map(); // call id → key of the call, as a model of this run made it
  #unrecorded = [];
  #live = new Set();
  #network = new Set();
  #recordedModels = 0;
  #liveModels = 0;
  store = new StoreOverlay();

  /**
   * @param {any} spec
   * @param {import("../checkpoints/serializer.mjs").Serializer} serializer
   * @param {import("../libraries.mjs").Library} library
   * @param {any} langgraph of the run's graph
   */
  constructor(spec, serializer, library, langgraph) {
    const { tools = [], models = [] } = spec.recording ?? {};
    this.#serializer = serializer;
    this.#library = library;
    this.#langgraph = langgraph;
    this.#areToolsLive = spec.tools === "live";
    this.#liveTools = new Set(spec.live_tools ?? []);
    this.hasNetwork = Boolean(spec.network);
    tools.forEach((call) => this.#tools.add(toolKey(call.name, call.args), call.at ?? "", call));
    if (spec.models === "recorded") {
      models.forEach((call) => this.#models.add(call.messages, "", call));
    }
  }

  /** Return the report that the DONE frame contains. */
  report() {
    return {
      unrecorded: this.#unrecorded,
      live: [...this.#live],
      network: [...this.#network],
      models_recorded: this.#recordedModels,
      models_live: this.#liveModels,
    };
  }

  /** Record a refused connection, or a refused request to the deployment. */
  reportNetwork(attempt) {
    if (this.#network.size < MAX_REPORTED) {
      this.#network.add(attempt);
    }
  }

  /** Remember the tool calls of a model's message. */
  learnCalls(message) {
    for (const { id, name, args } of message?.tool_calls ?? []) {
      if (id) {
        this.#byId.set(id, toolKey(name, args));
      }
    }
  }

  /** Return the key of a call: by the tool's arguments if these are recorded, otherwise by the message's. */
  keyOf(name, args, callId) {
    const key = toolKey(name, args);
    return this.#tools.has(key) ? key : (this.#byId.get(callId) ?? key);
  }

  /** Whether a call of a tool is executed. Records the tool's name. */
  isLive(name, key) {
    const isLive = this.#areToolsLive || (this.#liveTools.has(name) && !this.#tools.has(key));
    if (isLive) {
      this.#live.add(name);
    }
    return isLive;
  }

  /**
   * Return a function that returns the result of a tool's call, in the form that its caller expects, or asks the question
   * that the tool asked.
   *
   * A node may add its own updates to a tool's message. The recording cannot tell these from the updates of a `Command`, so
   * only LangGraph's node of tools receives commands.
   *
   * @param {string} key
   * @param {{name: string, args: unknown, callId?: string, isFromToolNode: boolean, caller: string}} call
   */
  toolAnswer(key, call) {
    const { name, args } = call;
    let recorded = this.#tools.next(key, call.caller);
    if (recorded === undefined) {
      if (this.#unrecorded.length < MAX_REPORTED) {
        this.#unrecorded.push({ tool: name, args: shortened(args) });
      }
      const content = `The tool '${name}' was not executed: the recorded run has no call with these arguments.`;
      recorded = { content, status: "error" };
    }
    return () => this.#result(recorded, call);
  }

  /** @param {any} recorded @param {{name: string, callId?: string, isFromToolNode: boolean}} call */
  #result(recorded, { name, callId, isFromToolNode }) {
    if ("interrupt" in recorded) {
      return this.#langgraph.interrupt(this.#serializer.loads(recorded.interrupt));
    }
    const { content, status, artifact, command, id } = recorded;
    if (callId === undefined) {
      return content;
    }
    if (command !== undefined && isFromToolNode) {
      const { update, goto, is_for_parent: isForParent } = this.#serializer.loads(command);
      for (const [channel, value] of Object.entries(update)) {
        update[channel] = withCallId(value, id, callId);
      }
      const { Command } = this.#langgraph;
      return new Command({ update, goto, ...(isForParent ? { graph: Command.PARENT } : {}) });
    }
    return new this.#library.messages.ToolMessage({
      content,
      status: status ?? "success",
      ...(artifact === undefined ? {} : { artifact: this.#serializer.loads(artifact) }),
      tool_call_id: callId,
      name,
    });
  }

  /** Return the recorded message for these messages, and count the call. undefined: call the model. */
  modelAnswer(messages) {
    const recorded = this.#models.next(promptKey(messages), "");
    if (recorded === undefined) {
      this.#liveModels++;
      return undefined;
    }
    this.#recordedModels++;
    const message = this.#serializer.loads(recorded.response);
    this.learnCalls(message);
    message.id = undefined; // a thread may not hold two messages with one id
    return message;
  }
}

/**
 * Recorded calls by key. Equal calls receive them in order, and the last one again.
 *
 * A call gets those of its own graph, if there are any: a subagent may have made equal ones.
 */
class Answers {
  #left = new Map();

  add(key, at, call) {
    const byGraph = this.#left.get(key) ?? new Map();
    byGraph.set(at, [...(byGraph.get(at) ?? []), call]);
    this.#left.set(key, byGraph);
  }

  has(key) {
    return this.#left.has(key);
  }

  next(key, at) {
    const byGraph = this.#left.get(key);
    const left = byGraph?.get(at) ?? byGraph?.values().next().value;
    return left?.length > 1 ? left.shift() : left?.[0];
  }
}

/** Return the names of the nodes around a graph, without the ids of their tasks. */
export function graphAt(ns) {
  const names = ns.split("|").map((part) => part.split(":")[0]);
  return names.join("|");
}

function toolKey(name, args) {
  return `${name}\n${canonical(args)}`;
}

function canonical(value) {
  return dumps(sorted(loads(dumps(value ?? null))));
}

function sorted(value) {
  if (isArray(value)) {
    return value.map(sorted);
  }
  if (typeof value !== "object" || value === null) {
    return value;
  }
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]));
}

function shortened(args) {
  const text = canonical(args);
  return text.length <= MAX_ARGS_LENGTH ? loads(text) : text.slice(0, MAX_ARGS_LENGTH);
}

/** Return a digest of a model call's messages, without ids and system messages. */
export function promptKey(messages) {
  const shown = messages
    .filter((message) => typeOf(message) !== "system")
    .map((message) => ({
      type: typeOf(message),
      content: message.content,
      name: message.name ?? null,
      tool_calls: (message.tool_calls ?? []).map(({ name, args }) => [name, args]),
      status: message.status ?? null,
    }));
  return createHash("sha256").update(canonical(shown)).digest("hex");
}

/** Replace a call's recorded id in messages with its id in this run. Returns other values unchanged. */
function withCallId(value, recordedId, callId) {
  if (isArray(value)) {
    return value.map((item) => withCallId(item, recordedId, callId));
  }
  if (isMessage(value) && value.tool_call_id === recordedId) {
    Object.assign(value, { tool_call_id: callId, id: undefined });
  } else if (isMessage(value)) {
    for (const call of value.tool_calls ?? []) {
      call.id = call.id === recordedId ? callId : call.id;
    }
  }
  return value;
}
