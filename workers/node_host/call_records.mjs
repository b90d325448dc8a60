/**
 * Records of a traced run's model and tool calls, which the runner converts to spans (`workers/call_spans.py`).
 *
 * A record is sent when its call ends, so a host that is killed loses the calls that are in progress. A run that is not
 * traced has no records and pays nothing for them.
 */

import { Content, isRequested } from "./call_content.mjs";
import { nodesAround } from "./checkpoints/node_times.mjs";
import { masked } from "./masking.mjs";
import { isMessage } from "./messages.mjs";
import { dumps, errorName, errorText, textOf } from "./serialization.mjs";

const { isArray } = Array;
const now = () => Date.now() / 1000;
const MAX_CALLS = 1000; // of an attempt; later ones are counted and dropped
const MAX_CHAINS = 1000; // open at the same time within tools
const MAX_NAME = 200;
const MAX_MESSAGE = 1000;
/** Parameters of a request that a span may show. */
const SETTINGS = [
  "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "max_output_tokens", "frequency_penalty",
  "presence_penalty", "seed", "n", "reasoning_effort",
];
const REASONS = ["finish_reason", "stop_reason", "stopReason", "done_reason"];

/** Sends one record for each call of a run. */
export class CallRecords {
  #send;
  #hasNodes;
  #hasSubgraphs;
  #content = isRequested() ? new Content() : null;
  #open = new Map(); // by LangChain's run id
  #nodes = new Map(); // of open calls, the nodes around them
  #chains = new Map(); // runs within open tools, with their parents
  #tools = 0; // open ones
  #count = 0;
  #dropped = 0;

  /**
   * @param {(body: string) => void} send
   * @param {{hasNodes: boolean, hasSubgraphs: boolean}} options whether the runner has spans of nodes, and of nodes in
   *   subgraphs
   */
  constructor(send, { hasNodes, hasSubgraphs }) {
    this.#send = send;
    this.#hasNodes = hasNodes;
    this.#hasSubgraphs = hasSubgraphs;
  }

  get hasOpenTool() {
    return this.#tools > 0;
  }

  /** @param {{operation: string, serialized: any, messages: any, runId: string, parentRunId: any, extra: any, metadata: any, name: any}} call */
  beginModel({ operation, serialized, messages, runId, parentRunId, extra, metadata, name }) {
    const record = this.#begin(operation, runId, parentRunId, metadata);
    if (record === undefined) {
      return;
    }
    const params = extra?.invocation_params ?? {};
    const model = metadata?.ls_model_name ?? params.model ?? params.model_name;
    record.model = named(model);
    record.name = named(model ?? name ?? serialized?.name ?? serialized?.id?.at?.(-1));
    record.provider = named(metadata?.ls_provider);
    const limits = { temperature: metadata?.ls_temperature, max_tokens: metadata?.ls_max_tokens };
    const settings = SETTINGS.map((each) => [each, limits[each] ?? params[each] ?? params[camelCase(each)]]);
    record.settings = Object.fromEntries(settings.filter(([, value]) => value !== undefined && value !== null));
    const stop = extra?.options?.stop ?? metadata?.ls_stop;
    if (isArray(stop) && stop.length) {
      record.stop = stop.slice(0, 4).map(named);
    }
    if (messages?.length) {
      const conversation = operation === "chat" ? messages[0] : [{ type: "human", content: messages[0] }];
      this.#content?.addInput(record, conversation);
    }
  }

  beginTool({ serialized, input, runId, parentRunId, metadata, name, toolCallId }) {
    const record = this.#begin("execute_tool", runId, parentRunId, metadata);
    if (record === undefined) {
      return;
    }
    this.#tools++;
    record.name = named(name ?? serialized?.name ?? serialized?.id?.at?.(-1));
    record.tool_call = named(toolCallId);
    this.#content?.add(record, "arguments", input);
  }

  /** Record that a runnable began within a tool: the calls that it makes are the tool's. */
  beginChain(runId, parentRunId) {
    if (this.#chains.size < MAX_CHAINS) {
      this.#chains.set(runId, parentRunId);
    }
  }

  endChain(runId) {
    this.#chains.delete(runId);
  }

  firstToken(runId) {
    const record = this.#open.get(runId);
    if (record !== undefined) {
      record.first ??= now();
    }
  }

  endModel(runId, output, usage) {
    const record = this.#open.get(runId);
    if (record === undefined) {
      return;
    }
    const candidates = output?.generations?.[0] ?? [];
    const messages = candidates.map((each) => each?.message).filter(isMessage);
    const described = messages[0]?.response_metadata ?? {};
    record.response_model = named(described.model_name ?? described.model);
    record.response = named(described.id);
    record.finish = candidates.map(finishReason).filter(Boolean).slice(0, 4);
    record.usage = usage;
    const texts = candidates.map((each) => ({ type: "ai", content: each?.text }));
    this.#content?.addOutput(record, messages.length ? messages : texts);
    this.#end(runId);
  }

  endTool(runId, output) {
    const record = this.#open.get(runId);
    if (record === undefined) {
      return;
    }
    const isAnswer = isMessage(output);
    record.tool_call ??= isAnswer ? named(output.tool_call_id) : undefined;
    if (isAnswer && output.status === "error") {
      record.error = "tool_error";
    }
    this.#content?.add(record, "result", isAnswer ? output.content : output);
    this.#end(runId);
  }

  fail(runId, error, isInterrupt) {
    const record = this.#open.get(runId);
    if (record === undefined) {
      return;
    }
    if (isInterrupt) {
      record.interrupted = true;
    } else {
      record.error = masked(errorName(error));
      record.message = errorText(error).slice(0, MAX_MESSAGE);
    }
    this.#end(runId);
  }

  /** Send the records of calls that have not ended, and how many were dropped. Code that outlives the run sends no more. */
  close(reason) {
    for (const [runId, record] of [...this.#open]) {
      record.error ??= reason;
      this.#end(runId);
    }
    if (this.#dropped) {
      this.#send(dumps({ dropped: this.#dropped }));
    }
    this.#count = MAX_CALLS;
  }

  /** @returns {Record<string, any> | undefined} */
  #begin(operation, runId, parentRunId, metadata) {
    if (this.#count >= MAX_CALLS) {
      this.#dropped++;
      return undefined;
    }
    this.#count++;
    const node = this.#nodeOf(String(metadata?.langgraph_checkpoint_ns ?? ""));
    const caller = this.#callerOf(parentRunId);
    const isCalled = caller !== undefined && this.#nodes.get(caller) === node;
    const record = { id: runId, operation, within: isCalled ? caller : node, from: now() };
    this.#nodes.set(runId, node);
    this.#open.set(runId, record);
    return record;
  }

  /** Return the id of the innermost node around a call that has a span. */
  #nodeOf(ns) {
    const nodes = this.#hasNodes ? nodesAround(ns) : [];
    return nodes.at(this.#hasSubgraphs ? -1 : 0)?.id ?? null;
  }

  /**
   * Return the innermost open call around a run. A call to which user code passes callbacks of its own has no parent, and
   * LangChain hides its context from handlers.
   */
  #callerOf(parentRunId) {
    let runId = parentRunId;
    for (let depth = 0; depth < MAX_CHAINS && runId !== undefined && !this.#open.has(runId); depth++) {
      runId = this.#chains.get(runId);
    }
    return this.#open.has(runId) ? runId : undefined;
  }

  #end(runId) {
    const record = this.#open.get(runId);
    this.#open.delete(runId);
    this.#nodes.delete(runId);
    if (record.operation === "execute_tool") {
      this.#tools--;
    }
    if (!this.#tools) {
      this.#chains.clear(); // their ends are not reported any more
    }
    this.#send(dumps({ ...record, until: Math.max(now(), record.from) }));
  }
}

function named(value) {
  return value === undefined || value === null ? undefined : masked(textOf(value)).slice(0, MAX_NAME);
}

function camelCase(name) {
  return name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
}

/** Return why a model stopped, as its provider calls it. */
function finishReason(generation) {
  const places = [generation?.generationInfo ?? {}, generation?.message?.response_metadata ?? {}];
  const reasons = places.flatMap((place) => REASONS.map((name) => place[name]));
  return named(reasons.find((reason) => typeof reason === "string"));
}
