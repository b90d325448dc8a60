/** LangChain's own events of a run, in the shapes that LangChain for Python gives them. */

import { emptied } from "./chunks.mjs";
import { isChunk, streamedRecord } from "./messages.mjs";

const { isArray } = Array;
const { keys } = Object;

const HIDDEN = "langsmith:hidden";
const OF_NODE = /^graph:step:/; // the tag of a node's run

/**
 * Converts the events of one run. Is a callback handler too: LangChain's events contain `{output: 1}` as 1, so the handler
 * keeps whole inputs and outputs until their events are converted.
 */
export class LibraryEvents {
  name = "runyard-library-events";
  awaitHandlers = true;
  raiseError = false;
  ignoreLLM = true;
  ignoreRetriever = true;
  ignoreCustomEvent = true;
  lc_prefer_streaming = true; // as LangChain's own handler of events
  #root;
  #inputs = new Map();
  #outputs = new Map();
  #streamed = new Map(); // by model call: its newest event

  /** @param {string} root id of the run */
  constructor(root) {
    this.#root = root;
  }

  copy() {
    return this;
  }

  handleChainStart(_chain, inputs, runId) {
    this.#inputs.set(runId, inputs);
  }

  handleChainEnd(outputs, runId) {
    this.#outputs.set(runId, outputs);
  }

  handleChainError(_error, runId) {
    this.#inputs.delete(runId);
  }

  /** Return the events to write for an item of LangChain's event stream. */
  converted(event) {
    const shown = event.tags?.includes(HIDDEN) ? [] : this.#shown(event);
    if (event.event === "on_chain_end") {
      this.#inputs.delete(event.run_id);
      this.#outputs.delete(event.run_id);
    }
    return shown.map((each) => ({ ...each, parent_ids: [] }));
  }

  #shown(event) {
    const { event: name, run_id: id, data } = event;
    switch (name) {
      case "on_chat_model_stream":
        if (isChunk(data.chunk)) {
          this.#streamed.set(id, event);
          return [{ ...event, data: { ...data, chunk: streamedRecord(data.chunk) } }];
        }
        return [event];
      case "on_chat_model_end":
        return [...this.#lastChunk(id), event];
      case "on_chain_start":
        return [this.#withValues(event)];
      case "on_chain_end":
        return this.#ended(event);
      default:
        return [event];
    }
  }

  /** Return the empty chunk at the end of a streamed model call, which LangChain for JavaScript leaves out. */
  #lastChunk(id) {
    const event = this.#streamed.get(id);
    this.#streamed.delete(id);
    return event === undefined ? [] : [{ ...event, data: { chunk: streamedRecord(emptied(event.data.chunk), true) } }];
  }

  /** Return the end of a run, for a node's after its output as a chunk. */
  #ended(event) {
    const ended = this.#withValues(event);
    const chunk = { ...ended, event: "on_chain_stream", data: { chunk: ended.data.output } };
    return isOfNode(event) ? [chunk, ended] : [ended];
  }

  #withValues(event) {
    const { run_id: id, data } = event;
    const isRoot = id === this.#root;
    const holdsState = isOfNode(event) || isRoot;
    const shown = { ...data };
    if (Object.hasOwn(data, "input") && this.#inputs.has(id)) {
      shown.input = unwrapped(this.#inputs.get(id), "input", holdsState);
    }
    if (Object.hasOwn(data, "output") && this.#outputs.has(id) && !isRoot) {
      shown.output = unwrapped(this.#outputs.get(id), "output", holdsState);
    }
    return { ...event, data: shown };
  }
}

function isOfNode({ tags }) {
  return tags?.some((tag) => OF_NODE.test(tag));
}

/**
 * Return the value that LangChain passed to callbacks, which wraps lists and plain values in an object.
 *
 * @param {any} value
 * @param {string} key of the wrapped value
 * @param {boolean} holdsState whether an object with only that key is more likely a part of a state
 */
function unwrapped(value, key, holdsState) {
  const names = keys(value ?? {});
  if (names.length !== 1 || names[0] !== key) {
    return value;
  }
  const inner = value[key];
  const isWrapped = inner === null || inner === undefined || isArray(inner) || !holdsState;
  return isWrapped ? (inner ?? null) : value;
}
