/**
 * Interception of the calls of tools, chat models and sockets in replayed runs.
 *
 * LangChain calls every tool through `StructuredTool.call`, and every chat model through `_generateUncached` or
 * `_streamIterator`. These are wrapped once, when the process has its first replay. The wrappers look up the replay of the
 * current run, so each run of a host has its own answers, and runs that are no replay pass through.
 *
 * Connections outside of models and executed tools are refused and reported. This is no security boundary:
 * `workers/graph_host/replays/network.py` says what it does not see.
 */

import { AsyncLocalStorage } from "node:async_hooks";
import { createRequire } from "node:module";
import { Socket } from "node:net";
import path from "node:path";

import { current } from "../current.mjs";
import { importEntry } from "../libraries.mjs";
import { graphAt } from "./replay.mjs";

const CORE = "@langchain/core";
const TOOL_NODE = /\bToolNode\b/;
const REFUSAL = 'a replay opens no connections outside of its models: "network": true allows them';

/** Whether the current code belongs to a model call or an executed tool, which may use the network. */
const service = new AsyncLocalStorage();

/** @type {Promise<void> | undefined} */
let installed;

/**
 * Have the calls of all tools and chat models of this process pass through the replay of their run.
 *
 * @param {string} core the folder of LangChain's core
 */
export function install(core) {
  installed ??= wrapAll(core);
  return installed;
}

async function wrapAll(core) {
  wrapSocket();
  const require = createRequire(path.join(core, "package.json"));
  const wrappers = { tools: wrapTools, "language_models/chat_models": wrapModels };
  for (const [name, wrap] of Object.entries(wrappers)) {
    wrap(await importEntry(core, `./${name}`));
    const file = require.resolve(`${CORE}/${name}`);
    if (file in require.cache) {
      wrap(require(file)); // the project also uses the CommonJS modules
    }
  }
}

function wrapTools({ StructuredTool: { prototype } }) {
  const { call } = prototype;
  prototype.call = async function (arg, config, tags) {
    const run = current();
    if (run === undefined) {
      throw new Error(`the tool '${this.name}' is called outside of its run, which is a replay`);
    }
    const replay = run.replay;
    if (replay === undefined) {
      return await call.call(this, arg, config, tags);
    }
    const isCall = arg?.type === "tool_call";
    const args = isCall ? arg.args : arg;
    const callId = (isCall ? arg.id : undefined) ?? config?.toolCall?.id;
    const key = replay.keyOf(this.name, args, callId);
    if (replay.isLive(this.name, key)) {
      return await service.run(true, () => call.call(this, arg, config, tags));
    }
    const ns = config?.configurable?.checkpoint_ns ?? "";
    const caller = graphAt(ns.split("|").slice(0, -1).join("|"));
    const details = { name: this.name, args, callId, isFromToolNode: isFromToolNode(), caller };
    const answer = replay.toolAnswer(key, details);
    const standIn = Object.create(this, {
      _call: { value: async () => answer() },
      responseFormat: { value: "content" },
    });
    return await call.call(standIn, arg, config, tags);
  };
}

/** Whether LangGraph's node of tools calls the current function. */
function isFromToolNode() {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 30;
  const { stack } = new Error();
  Error.stackTraceLimit = stackTraceLimit;
  return TOOL_NODE.test(stack ?? "");
}

function wrapModels({ BaseChatModel: { prototype } }) {
  const { _generateUncached, _streamIterator, _streamResponseChunks, _streamChatModelEvents } = prototype;
  prototype._generateUncached = async function (messages, ...rest) {
    const replay = current()?.replay;
    if (replay === undefined) {
      return await _generateUncached.call(this, messages, ...rest);
    }
    const answer = messages.length === 1 ? replay.modelAnswer(messages[0]) : undefined;
    if (answer === undefined) {
      const result = await service.run(true, () => _generateUncached.call(this, messages, ...rest));
      result.generations.flat().forEach((generation) => replay.learnCalls(generation.message));
      return result;
    }
    const generations = [{ message: answer, text: typeof answer.content === "string" ? answer.content : "" }];
    const standIn = Object.create(this, {
      _generate: { value: async () => ({ generations }) },
      _streamResponseChunks: { value: _streamResponseChunks }, // as a model that does not stream
      _streamChatModelEvents: { value: _streamChatModelEvents },
    });
    return await _generateUncached.call(standIn, messages, ...rest);
  };
  prototype._streamIterator = async function* (input, options) {
    if (current()?.replay === undefined) {
      yield* _streamIterator.call(this, input, options);
    } else {
      yield await this.invoke(input, options); // a streamed answer is one chunk
    }
  };
}

function wrapSocket() {
  const prototype = /** @type {any} */ (Socket.prototype);
  const { connect } = prototype;
  prototype.connect = function (...args) {
    const replay = current()?.replay;
    const address = addressOf(args);
    if (replay === undefined || replay.hasNetwork || service.getStore() || address === null) {
      return connect.apply(this, args);
    }
    replay.reportNetwork(address);
    const error = Object.assign(new Error(REFUSAL), { code: "ECONNREFUSED" });
    process.nextTick(() => this.destroy(error));
    return this;
  };
}

/**
 * Return the address of a connection; null for a socket of this machine's file system.
 *
 * @param {any[]} args
 */
function addressOf([first, second]) {
  const options = Array.isArray(first) ? first[0] : first;
  if (typeof options === "object" && options !== null) {
    return options.path === undefined || options.path === null ? `${options.host ?? "localhost"}:${options.port}` : null;
  }
  return Number.isNaN(Number(options)) ? null : `${typeof second === "string" ? second : "localhost"}:${options}`;
}
