/**
 * Streamed messages as events of protocol v2, block by block.
 *
 * The sequence of events is message-start, then for each block content-block-start, its deltas and content-block-finish,
 * then message-finish. The blocks of one message never interleave. A block that a model begins before the previous one has
 * ended is held back.
 */

import { isChunk, record, typeOf } from "../messages.mjs";
import { addUsage } from "../spans.mjs";

const { isArray } = Array;
const { parse } = JSON;

const ROLES = { human: "human", system: "system", tool: "tool" }; // by message type; other types are `ai`
const PROSE = { __proto__: null, text: "text", reasoning: "reasoning" }; // types with streamed content, and its field
// Types of chunks of calls, and the types of whole calls.
const CALLS = { __proto__: null, tool_call_chunk: "tool_call", server_tool_call_chunk: "server_tool_call" };
const OF_CALLS = new Set(["tool_call_chunk", "tool_call", "invalid_tool_call"]);
// Fields whose text arrives in pieces.
const JOINED = new Set(["text", "reasoning", "args", "data", "base64", "transcript"]);
// Fields that are left out until a block is finished, and their placeholders by block type.
const HEAVY = new Set(["args", "base64", "data", "output", "transcript", "value"]);
const NEEDED = { tool_call: { args: {} }, server_tool_call: { args: {} }, non_standard: { value: {} } };
const UNREADABLE = "Failed to parse tool call arguments as JSON";

/** A message that is being streamed. Its events are yielded as its chunks arrive. */
export class MessageBlocks {
  #open = []; // the first block streams, the others are held back
  #byKey = new Map();
  #count = 0;
  /** @type {Record<string, any> | null} */
  #usage = null;
  #metadata = {};
  /** @type {unknown} */
  #reason; // of Anthropic's chunks, which give it outside of the metadata

  /** @param {any} message the first chunk, or the whole message */
  constructor(message) {
    this.id = message.id ?? "";
  }

  /** Return the first event of a message. `metadata` is the metadata of the graph's stream. */
  begin(message, metadata) {
    const known = message.response_metadata ?? {};
    const described = {
      provider: known.model_provider ?? metadata.ls_provider,
      model: known.model_name ?? metadata.ls_model_name,
      langgraph_node: metadata.langgraph_node,
    };
    const type = typeOf(message);
    return {
      event: "message-start",
      role: ROLES[type] ?? "ai",
      id: this.id,
      ...(type === "tool" ? { tool_call_id: message.tool_call_id } : {}),
      metadata: Object.fromEntries(Object.entries(described).filter(([, value]) => typeof value === "string")),
    };
  }

  /** Yield the events of a chunk. A whole message counts as its only chunk. */
  *add(message) {
    for (const [key, block] of slices(message)) {
      yield* this.#take(key, block);
    }
    Object.assign(this.#metadata, message.response_metadata ?? {});
    this.#reason = message.additional_kwargs?.stop_reason || this.#reason;
    if (message.usage_metadata) {
      addUsage((this.#usage ??= {}), message.usage_metadata);
    }
  }

  /** Yield the events that end the open blocks and the message. */
  *finish() {
    for (const block of this.#open) {
      yield* block.begin();
      yield block.finish();
    }
    this.#open = [];
    const reason = this.#metadata.finish_reason || this.#metadata.stop_reason || this.#reason;
    yield {
      event: "message-finish",
      ...(this.#usage === null ? {} : { usage: this.#usage }),
      ...(typeof reason === "string" ? { reason } : {}),
      ...(Object.keys(this.#metadata).length ? { metadata: this.#metadata } : {}),
    };
  }

  *#take(key, slice) {
    let block = this.#byKey.get(key);
    if (block === undefined || block.isFinished) {
      if (isEmpty(slice) || (block !== undefined && goesOn(slice))) {
        return;
      }
      block = new Block(this.#count++);
      this.#byKey.set(key, block);
      this.#open.push(block);
    }
    block.merge(slice);
    if (block.isBegun) {
      yield* block.delta(slice);
    }
    while (this.#open.length > 1 && this.#open[0].mayEnd) {
      yield* this.#open[0].begin();
      yield this.#open.shift().finish();
    }
    yield* this.#open[0].begin();
  }
}

/** One content block, with its merged content and its streaming state. */
class Block {
  isBegun = false;
  isFinished = false;
  #index;
  #state = {};

  constructor(index) {
    this.#index = index;
  }

  /** Whether this block seems complete, so that it can end once another block has begun. */
  get mayEnd() {
    if (!(this.#state.type in CALLS)) {
      return true;
    }
    const args = (this.#state.args ?? "").trimEnd();
    return args.endsWith("}") && parsed(args) !== null;
  }

  merge(slice) {
    const state = this.#state;
    for (const [name, value] of Object.entries(slice)) {
      const known = state[name];
      if (JOINED.has(name) && typeof known === "string" && typeof value === "string") {
        state[name] = known + value;
      } else if (isArray(known) && isArray(value)) {
        state[name] = [...known, ...value];
      } else if (isObject(known) && isObject(value)) {
        state[name] = { ...known, ...value };
      } else if ((value !== null && value !== undefined) || !Object.hasOwn(state, name)) {
        state[name] = value ?? null;
      }
    }
  }

  /** Yield the start event and the content received so far. Yields nothing on later calls. */
  *begin() {
    if (!this.isBegun) {
      this.isBegun = true;
      yield { event: "content-block-start", index: this.#index, content: outline(this.#state) };
      yield* this.delta(this.#state);
    }
  }

  *delta(slice) {
    const delta = deltaOf(slice);
    if (delta !== null) {
      yield { event: "content-block-delta", index: this.#index, delta };
    }
  }

  finish() {
    this.isFinished = true;
    return { event: "content-block-finish", index: this.#index, content: whole(this.#state) };
  }
}

/** Yield the blocks of a chunk as `[key, block]`. The key identifies the block within its message. */
function* slices(message) {
  const isStreamed = isChunk(message) && typeOf(message) === "ai";
  const calls = isStreamed ? (message.tool_call_chunks ?? []) : [];
  const isBare = !Object.keys(message.additional_kwargs ?? {}).length;
  const isPlain = isBare && (typeof message.content === "string" || !message.content?.length);
  // The last chunk of OpenAI's Responses has the whole response in its metadata, from which core would repeat blocks.
  const blocks = isPlain && isStreamed ? textBlocks(message) : blocksOf(message).map(signed);
  for (const [position, block] of blocks.entries()) {
    if (isObject(block) && !(calls.length && OF_CALLS.has(block.type))) {
      yield [`${block.type} ${block.index ?? position}`, block];
    }
  }
  for (const [position, { type: _, ...call }] of calls.entries()) {
    yield [`call ${call.index ?? `at ${position}`}`, { type: "tool_call_chunk", ...call }];
  }
  if (!isStreamed) {
    for (const [position, invalid] of (record(message).invalid_tool_calls ?? []).entries()) {
      yield [`invalid ${position}`, { ...invalid, type: "invalid_tool_call" }];
    }
  }
}

function textBlocks({ content }) {
  return content?.length ? [{ type: "text", text: content }] : [];
}

/** Return Anthropic's signature of a reasoning, which core does not recognize in a chunk of its own, as part of that. */
function signed(block) {
  const value = block?.type === "non_standard" ? block.value : undefined;
  const isSignature = value?.type === "thinking" && typeof value.signature === "string";
  return isSignature ? { type: "reasoning", signature: value.signature, index: value.index } : block;
}

function blocksOf(message) {
  try {
    return [...message.contentBlocks];
  } catch {
    return typeof message.content === "string" ? textBlocks(message) : []; // unknown content of a provider
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !isArray(value);
}

function isEmpty(slice) {
  const field = PROSE[slice.type];
  const others = Object.keys(slice).filter((name) => !["type", "index", field].includes(name));
  return field !== undefined && !slice[field] && !others.length;
}

/** Whether this is a later piece of a tool call. */
function goesOn(slice) {
  return slice.type in CALLS && !slice.name;
}

/** Return the delta of a slice; null if its content is sent only when the block is finished. */
function deltaOf(slice) {
  const field = PROSE[slice.type];
  if (field !== undefined) {
    return slice[field] ? { type: `${slice.type}-delta`, [field]: slice[field] } : null;
  }
  if (slice.type in CALLS) {
    return slice.args ? { type: "tool-call-delta", args: slice.args } : null;
  }
  if (typeof slice.data === "string" && slice.data) {
    const encoding = Object.hasOwn(slice, "encoding") ? { encoding: slice.encoding } : {};
    return { type: "data-delta", data: slice.data, ...encoding };
  }
  return null;
}

/** Return a block without the content that its deltas or its finish event transmit. */
function outline(state) {
  const { type } = state;
  const field = PROSE[type];
  if (field !== undefined) {
    return { ...without(state, [field, "index", "annotations"]), [field]: "" };
  }
  if (type in CALLS) {
    const index = state.index === null || state.index === undefined ? {} : { index: state.index };
    return { type, id: state.id ?? null, name: state.name ?? null, args: "", ...index };
  }
  return { ...without(state, [...HEAVY]), ...NEEDED[type] };
}

/** Return the finished block. A call whose arguments are not a JSON object becomes an invalid tool call. */
function whole(state) {
  const { type, id, name } = state;
  if (!(type in CALLS)) {
    return state;
  }
  const dropped = ["type", "id", "name", "args", ...(type === "tool_call_chunk" ? ["index"] : [])];
  const rest = Object.fromEntries(Object.entries(without(state, dropped)).filter(([, value]) => value !== null));
  const raw = state.args || "{}";
  const args = parsed(raw);
  if (args === null) {
    return { type: "invalid_tool_call", id: id ?? null, name: name ?? null, args: raw, error: UNREADABLE, ...rest };
  }
  return { type: CALLS[type], id: id || "", name: name || "", args, ...rest };
}

function without(object, names) {
  return Object.fromEntries(Object.entries(object).filter(([name]) => !names.includes(name)));
}

function parsed(args) {
  try {
    const document = parse(args);
    return isObject(document) ? document : null;
  } catch {
    return null;
  }
}
