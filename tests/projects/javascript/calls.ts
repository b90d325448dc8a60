/** A graph that calls models and tools in each way that a trace must show. `calls.py` is its twin in Python. */

import type { CallbackManagerForLLMRun } from "@langchain/core/callbacks/manager";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { FakeLLM } from "@langchain/core/utils/testing";
import { AIMessage, AIMessageChunk, HumanMessage, SystemMessage, type BaseMessage } from "@langchain/core/messages";
import { ChatGenerationChunk } from "@langchain/core/outputs";
import { RunnableLambda } from "@langchain/core/runnables";
import { tool } from "@langchain/core/tools";
import { Annotation, START, StateGraph, getWriter, interrupt } from "@langchain/langgraph";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import { z } from "zod";

const State = Annotation.Root({ how: Annotation<string> });
const usage_metadata = {
  input_tokens: 5,
  output_tokens: 7,
  total_tokens: 12,
  input_token_details: { cache_read: 2, cache_creation: 1 },
  output_token_details: { reasoning: 3 },
};
const response_metadata = { model_name: "model-1-0613", id: "response-1", finish_reason: "stop" };

class Model extends BaseChatModel {
  fails: boolean;
  waits: boolean;

  constructor({ fails = false, waits = false } = {}) {
    super({});
    this.fails = fails;
    this.waits = waits;
  }

  _llmType() {
    return "model";
  }

  getLsParams() {
    return { ls_provider: "model", ls_model_name: "model-1", ls_model_type: "chat" as const, ls_temperature: 0.5 };
  }

  invocationParams() {
    return { model: "model-1", topP: 0.9, apiKey: "not shown" };
  }

  async _generate(_messages: BaseMessage[], options: this["ParsedCallOptions"]) {
    if (this.fails) {
      throw new TypeError("no answer");
    }
    if (this.waits) {
      getWriter()?.("waiting");
      await new Promise((resolve) => setTimeout(resolve, 60_000));
    }
    const tool_calls = options.stop ? [{ name: "look", args: { word: "sea" }, id: "call-1" }] : [];
    const message = new AIMessage({ content: "It is water.", tool_calls, usage_metadata, response_metadata });
    return { generations: [{ text: "It is water.", message }] };
  }

  async *_streamResponseChunks(
    _messages: BaseMessage[],
    _options: this["ParsedCallOptions"],
    manager?: CallbackManagerForLLMRun,
  ) {
    for (const text of ["It is ", "water."]) {
      const chunk = new ChatGenerationChunk({ message: new AIMessageChunk(text), text });
      yield chunk;
      await manager?.handleLLMNewToken(text, undefined, undefined, undefined, undefined, { chunk });
    }
    const message = new AIMessageChunk({ content: "", usage_metadata, response_metadata });
    yield new ChatGenerationChunk({ message, text: "" });
  }
}

function made(name: string, call: (fields: { word: string }) => Promise<string>) {
  return tool(call, { name, description: name, schema: z.object({ word: z.string() }) });
}

const look = made("look", async ({ word }) => {
  await RunnableLambda.from((text: string) => text).pipe(new Model()).invoke(word);
  await new Model().invoke(word, { callbacks: [] });
  return `${word} means something`;
});
const fail = made("fail", async () => {
  throw new TypeError("no such word");
});
const ask = made("ask", async () => interrupt("which?"));

function called(name: string) {
  return { type: "tool_call" as const, name, id: "call-1", args: { word: "sea" } };
}

function conversation() {
  const questions = Array.from({ length: 9 }, (_, number) => `Question ${number}: ${"x".repeat(6000)}`);
  const last = `What is the sea? ${process.env.TOKEN}`;
  return [new SystemMessage("Be brief."), ...[...questions, last].map((text) => new HumanMessage(text))];
}

const WAYS: Record<string, () => Promise<unknown>> = {
  asks: () => new Model().invoke(conversation(), { stop: ["END"] }),
  completes: () => new FakeLLM({ response: "sea" }).invoke("water?"),
  beside: () => Promise.all([1, 2, 3].map(() => new Model().invoke("?"))),
  streams: async () => Array.fromAsync(await new Model().stream("?")),
  fails: () => new Model({ fails: true }).invoke("?"),
  waits: () => new Model({ waits: true }).invoke("?"),
  many: async () => {
    for (let number = 0; number < 1020; number++) {
      await new Model().invoke("?");
    }
  },
  tool: () => look.invoke(called("look")),
  "tool fails": () => fail.invoke(called("fail")),
  "tool refuses": () =>
    new ToolNode([fail], { handleToolErrors: true }).invoke([new AIMessage({ content: "", tool_calls: [called("fail")] })]),
  "tool asks": () => ask.invoke(called("ask")),
};

export const calls = new StateGraph(State)
  .addNode("act", async ({ how }) => {
    await WAYS[how]!();
    return {};
  })
  .addEdge(START, "act")
  .compile();
export const below = new StateGraph(State).addNode("inner", calls).addEdge(START, "inner").compile();
