/**
 * The model calls of one run, which LangGraph's stream of messages does not contain.
 *
 * Clients of Python graphs see an empty chunk after the last one of a call, with its position. LangChain for JavaScript has
 * no such chunk, so the events' writer adds it once all chunks of a call have been streamed.
 */

import { isMessage } from "./messages.mjs";

const REMEMBERED = 1000; // returned messages
const NO_STREAM = new Set(["langsmith:nostream", "nostream"]);

/**
 * One call of a chat model.
 *
 * @typedef {object} ModelCall
 * @property {string} runId
 * @property {number} produced chunks that will appear in the stream
 * @property {number} streamed messages that have appeared in the stream
 * @property {boolean} isReported the whole message has been sent
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
  #ended = []; // calls whose messages have not all been streamed
  #listeners = [];
  #calls = new Map();
  #ofMessages = new WeakMap(); // the calls of messages
  #ofIds = new Map(); // the calls of models that report tokens without their chunk, by the id of LangGraph's chunks
  #returned = new Set(); // messages that nodes have returned, the newest

  copy() {
    return this;
  }

  /** Call a function with each call that has ended, once all of its messages have been streamed. */
  onStreamed(listener) {
    this.#listeners.push(listener);
  }

  /** Count a message of LangGraph's stream. Called before the message is written. */
  count(message) {
    const call = this.callOf(message);
    if (call !== undefined) {
      call.streamed++;
    }
  }

  /** Return the model call of a streamed message; undefined if it comes from no model call. */
  callOf(message) {
    return this.#ofMessages.get(message) ?? this.#ofIds.get(message?.id);
  }

  /** Whether a message was returned by a node. For messages of no model call. */
  isReturned(message) {
    return this.#returned.has(message);
  }

  /** Report the calls that have ended and whose messages have all been streamed. */
  settle() {
    if (this.#ended.length) {
      const isOver = (call) => call.streamed >= (call.produced || (call.answer === undefined ? 0 : 1));
      const over = this.#ended.filter(isOver);
      this.#ended = this.#ended.filter((call) => !isOver(call));
      for (const call of over) {
        this.#listeners.forEach((listener) => listener(call));
        this.#ofIds.delete(chunkId(call.runId));
      }
    }
  }

  handleChainEnd(outputs) {
    this.#note(outputs);
  }

  handleChatModelStart(_llm, _messages, runId, _parentRunId, _extra, tags, metadata) {
    if (metadata && !tags?.some((tag) => NO_STREAM.has(tag))) {
      this.#calls.set(runId, { runId, produced: 0, streamed: 0, isReported: false });
    }
  }

  handleLLMNewToken(_token, _index, runId, _parentRunId, _tags, fields) {
    const call = this.#calls.get(runId);
    if (call === undefined) {
      return;
    }
    call.produced++;
    const message = fields?.chunk?.message;
    if (message) {
      this.#ofMessages.set(message, call);
    } else {
      this.#ofIds.set(chunkId(runId), call);
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
        this.#ofMessages.set(message, call);
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
    this.#ended.push(call);
    this.settle();
  }

  #note(output) {
    const parts = Array.isArray(output) ? output : [output];
    const values = parts.map((part) => part?.update ?? part).filter((part) => typeof part === "object" && part);
    for (const item of values.flatMap((value) => [value, ...Object.values(value)]).flat()) {
      if (isMessage(item)) {
        this.#returned.add(item);
      }
    }
    for (const item of this.#returned) {
      if (this.#returned.size <= REMEMBERED) {
        break;
      }
      this.#returned.delete(item);
    }
  }
}

/** Return the id that LangGraph gives the chunks of a model call. */
function chunkId(runId) {
  return `run-${runId}`;
}
