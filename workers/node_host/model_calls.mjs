/**
 * The model calls of one run, which LangGraph's stream of messages does not contain.
 *
 * Clients of Python graphs see an empty chunk after the last one of a call, with its position. LangChain for JavaScript has
 * no such chunk, so the events' writer adds it once all chunks of a call have been streamed.
 */

const NODES = 1000; // remembered nodes, the newest
const NO_STREAM = new Set(["langsmith:nostream", "nostream"]);

/**
 * One call of a chat model.
 *
 * @typedef {object} ModelCall
 * @property {string} runId
 * @property {number} produced chunks that will appear in the stream
 * @property {number} streamed messages that have appeared in the stream
 * @property {boolean} isReported the whole message has been sent
 * @property {boolean} hasEnded
 * @property {unknown} [error]
 * @property {any} [answer]
 */

/** A callback handler that records the model calls of one run. */
export class ModelCalls {
  name = "runyard-model-calls";
  awaitHandlers = true;
  raiseError = false;
  lc_prefer_streaming = true; // as LangGraph's own handler of messages
  ignoreRetriever = true;
  ignoreCustomEvent = true;
  /** @type {ModelCall[]} in order; a writer removes them */
  ended = [];
  /** Called when a call has ended. */
  onEnd = () => {};
  #calls = new Map();
  #unstreamed = new WeakMap(); // calls of messages that have not been streamed yet
  #nodes = new Set(); // ids of messages that nodes have received or returned

  copy() {
    return this;
  }

  /** Return the model call of a streamed message and count it; undefined if it comes from no model call. */
  callOf(message) {
    const call = this.#unstreamed.get(message);
    this.#unstreamed.delete(message);
    if (call !== undefined) {
      call.streamed++;
    }
    return call;
  }

  /** Whether all messages of a call have been streamed: its chunks, or its answer if it had no chunks. */
  static isStreamed(call) {
    return call.streamed >= (call.produced || (call.answer === undefined ? 0 : 1));
  }

  /** Whether a message was returned by a node. For messages of no model call. */
  isReturned(message) {
    return this.#nodes.has(message);
  }

  handleChainEnd(outputs) {
    this.#note(outputs?.update ?? outputs);
  }

  handleChatModelStart(_llm, _messages, runId, _parentRunId, _extra, tags, metadata) {
    if (metadata && !tags?.some((tag) => NO_STREAM.has(tag))) {
      this.#calls.set(runId, { runId, produced: 0, streamed: 0, isReported: false, hasEnded: false });
    }
  }

  handleLLMNewToken(_token, _index, runId, _parentRunId, _tags, fields) {
    const call = this.#calls.get(runId);
    const message = fields?.chunk?.message;
    if (call !== undefined && message) {
      call.produced++;
      this.#unstreamed.set(message, call);
    }
  }

  handleLLMEnd(output, runId) {
    const call = this.#calls.get(runId);
    this.#calls.delete(runId);
    if (call === undefined) {
      return;
    }
    const message = output?.generations?.[0]?.[0]?.message;
    if (message) {
      call.answer = message;
      if (!call.produced) {
        this.#unstreamed.set(message, call);
      }
    }
    this.#end(call);
  }

  handleLLMError(error, runId) {
    const call = this.#calls.get(runId);
    this.#calls.delete(runId);
    if (call !== undefined) {
      call.error = error;
      this.#end(call);
    }
  }

  #end(call) {
    call.hasEnded = true;
    this.ended.push(call);
    this.onEnd(call);
  }

  #note(value) {
    const found = Array.isArray(value) ? value : typeof value === "object" && value ? Object.values(value).flat() : [];
    for (const item of found) {
      if (typeof item === "object" && item !== null) {
        this.#nodes.add(item);
      }
    }
    for (const item of this.#nodes) {
      if (this.#nodes.size <= NODES) {
        break;
      }
      this.#nodes.delete(item);
    }
  }
}
