/**
 * Usage and times of a run's model and tool calls: with the times of its nodes, the spans of the DONE frame.
 *
 * Usage is counted by a callback handler and not from the run's events. A node may neither store nor stream a model's
 * message, and the calls of subgraphs count, too.
 */

import { MAX_NAME, MAX_SPANS, nodeAround } from "./checkpoints/node_times.mjs";
import { masked } from "./masking.mjs";
import { isMessage } from "./messages.mjs";
import { errorName, textOf } from "./serialization.mjs";

const now = performance.now.bind(performance);
const UNKNOWN = "unknown"; // the model of a message that names none
const TOKENS = ["input_tokens", "output_tokens", "total_tokens"];
const MOST_TOKENS = 1e12; // of a call: a larger sum would be written with an exponent
const BUBBLES = new Set(["GraphInterrupt", "NodeInterrupt", "ParentCommand", "GraphBubbleUp"]);

/**
 * A callback handler that counts the usage of model calls, and records when each model and tool call began and ended. In a
 * traced run it also passes the calls to the sender of their records.
 */
export class CallTimes {
  name = "runyard-usage";
  lc_prefer_streaming = false;
  awaitHandlers = true; // otherwise a call may end after the run
  raiseError = false;
  ignoreRetriever = true;
  ignoreCustomEvent = true;
  #nodes;
  #report;
  #records;
  #nodesOf = new Map(); // the node of each model call in progress
  // Only sums are kept, so that the report after each call does not take longer with each earlier call.
  #counted = new Set(); // message ids
  /** @type {Map<string, {node: string, model: string, sums: Record<string, any>}>} */
  #sums = new Map(); // by node and model
  #total = 0; // input and output tokens
  #calls = new Map();
  #firstTokenAt;
  #dropped = 0;

  /**
   * @param {import("./checkpoints/node_times.mjs").NodeTimes | null} nodes null: the run keeps no spans
   * @param {(total: number) => void} report called with the sum of all tokens after each increase
   * @param {import("./call_records.mjs").CallRecords | null} records null: the run is not traced
   */
  constructor(nodes, report, records) {
    this.#nodes = nodes;
    this.#report = report;
    this.#records = records;
  }

  get ignoreChain() {
    return !this.#records?.hasOpenTool;
  }

  copy() {
    return this;
  }

  handleChainStart(_chain, _inputs, runId, parentRunId) {
    this.#records?.beginChain(runId, parentRunId);
  }

  handleChainEnd(_outputs, runId) {
    this.#records?.endChain(runId);
  }

  handleChainError(_error, runId) {
    this.#records?.endChain(runId);
  }

  handleChatModelStart(serialized, messages, runId, parentRunId, extra, _tags, metadata, name) {
    this.#begin("model", serialized, runId, parentRunId, metadata, name);
    this.#records?.beginModel({ operation: "chat", serialized, messages, runId, parentRunId, extra, metadata, name });
  }

  handleLLMStart(serialized, messages, runId, parentRunId, extra, _tags, metadata, name) {
    const operation = "text_completion";
    this.#begin("model", serialized, runId, parentRunId, metadata, name);
    this.#records?.beginModel({ operation, serialized, messages, runId, parentRunId, extra, metadata, name });
  }

  handleLLMNewToken(_token, _index, runId) {
    this.#firstTokenAt ??= now();
    this.#records?.firstToken(runId);
  }

  /** Count the usage of a finished call. A message repeated from a cache keeps its id and counts once. */
  handleLLMEnd(output, runId) {
    let answer;
    let counted;
    const node = this.#nodesOf.get(runId) ?? "";
    this.#nodesOf.delete(runId);
    for (const [position, candidates] of (output?.generations ?? []).entries()) {
      const message = candidates[0]?.message;
      if (isMessage(message) && message.usage_metadata) {
        answer = position === 0 ? message : answer;
        const key = message.id ?? runId;
        if (!this.#counted.has(key)) {
          this.#counted.add(key);
          counted = message.usage_metadata;
          this.#add(node, modelOf(message), counted);
          this.#report(this.#total);
        }
      }
    }
    this.#end(runId, { answer });
    this.#records?.endModel(runId, output, counted);
  }

  handleLLMError(error, runId) {
    this.#nodesOf.delete(runId);
    this.#fail(runId, error);
  }

  handleToolStart(serialized, input, runId, parentRunId, _tags, metadata, name, toolCallId) {
    this.#begin("tool", serialized, runId, parentRunId, metadata, name);
    this.#records?.beginTool({ serialized, input, runId, parentRunId, metadata, name, toolCallId });
  }

  handleToolEnd(output, runId) {
    this.#end(runId, {});
    this.#records?.endTool(runId, output);
  }

  handleToolError(error, runId) {
    this.#fail(runId, error);
  }

  #add(node, model, usage) {
    const key = `${node}\0${model}`; // neither contains U+0000
    const entry = this.#sums.get(key) ?? { node, model, sums: Object.create(null) };
    this.#sums.set(key, entry);
    addUsage(entry.sums, usage);
    this.#total += count(usage.input_tokens) + count(usage.output_tokens);
  }

  /** Return the sums so far by model; null if no call has reported usage. */
  byModel() {
    const byModel = Object.create(null); // a model may have the name of a property of all objects
    for (const { model, sums } of this.#sums.values()) {
      addUsage((byModel[model] ??= Object.create(null)), sums);
    }
    return this.#sums.size ? byModel : null;
  }

  /** Return the sums so far by node of the graph and by model; null if no call has reported usage. */
  byNode() {
    const byNode = Object.create(null);
    for (const { node, model, sums } of this.#sums.values()) {
      const counted = TOKENS.filter((name) => name in sums).map((name) => [name, sums[name]]);
      (byNode[node] ??= Object.create(null))[model] = Object.fromEntries(counted);
    }
    return this.#sums.size ? byNode : null;
  }

  /** Return the seconds since a model first streamed a token; null if none did. */
  firstTokenAgo() {
    return this.#firstTokenAt === undefined ? null : (now() - this.#firstTokenAt) / 1000;
  }

  /** Return the spans of the DONE frame, at most MAX_SPANS; null if the run keeps none. */
  document(unfinished) {
    if (this.#nodes === null) {
      return null;
    }
    const spans = [...this.#nodes.spans(unfinished), ...this.#calls.values()];
    return {
      lasted_ms: this.#nodes.milliseconds(),
      spans: spans.sort((one, other) => one.from - other.from).slice(0, MAX_SPANS),
      dropped: this.#dropped + this.#nodes.dropped + Math.max(spans.length - MAX_SPANS, 0),
    };
  }

  #begin(kind, serialized, runId, parentRunId, metadata, runName) {
    const ns = String(metadata?.langgraph_checkpoint_ns ?? "");
    if (kind === "model") {
      this.#nodesOf.set(runId, textOf(ns.split("|", 1)[0].split(":", 1)[0]).replaceAll("\0", ""));
    }
    if (this.#nodes === null) {
      return;
    }
    if (this.#calls.size >= MAX_SPANS) {
      this.#dropped++;
      return;
    }
    const named = kind === "model" ? metadata?.ls_model_name : undefined;
    const name = named ?? runName ?? serialized?.name ?? serialized?.id?.at?.(-1) ?? kind;
    this.#nodes.observe(ns);
    this.#calls.set(runId, {
      id: runId,
      kind,
      name: masked(String(name)).slice(0, MAX_NAME),
      from: this.#nodes.milliseconds(),
      until: null,
      checkpoint: null,
      within: this.#calls.has(parentRunId) ? parentRunId : nodeAround(ns),
    });
  }

  #hasOpenTool() {
    return [...this.#calls.values()].some(({ kind, until }) => kind === "tool" && until === null);
  }

  #fail(runId, error) {
    this.#end(runId, { error });
    this.#records?.fail(runId, error, BUBBLES.has(error?.name));
  }

  /** @param {{error?: any, answer?: any}} result */
  #end(runId, result) {
    const { error, answer } = result;
    const span = this.#calls.get(runId);
    if (span === undefined) {
      return;
    }
    span.until = this.#nodes.milliseconds();
    if (error !== undefined) {
      span.error = BUBBLES.has(error?.name) ? "interrupted" : masked(errorName(error));
    }
    const usage = answer?.usage_metadata;
    if (usage?.total_tokens) {
      span.tokens = usage.total_tokens;
      if (this.#hasOpenTool()) {
        // A replay compares what models used outside of tools.
        span.usage = { [modelOf(answer)]: Object.fromEntries(TOKENS.map((name) => [name, usage[name]])) };
      }
    }
  }
}

function modelOf(message) {
  const described = message.response_metadata ?? {};
  return textOf(described.model_name || described.model || UNKNOWN).replaceAll("\0", "");
}

function count(value) {
  return Number.isInteger(value) ? Math.min(Math.max(value, 0), MOST_TOKENS) : 0;
}

/** Add integer counts to sums, including those of nested details. */
export function addUsage(sums, usage) {
  for (const [name, value] of Object.entries(usage)) {
    if (typeof value === "object" && value !== null) {
      addUsage((sums[name] ??= Object.create(null)), value);
    } else if (Number.isInteger(value)) {
      sums[name] = (sums[name] ?? 0) + value;
    }
  }
}
