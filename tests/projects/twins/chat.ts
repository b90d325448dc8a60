/** Graphs of `chat.py` in the project `chatroom`. */

import type { CallbackManagerForLLMRun } from "@langchain/core/callbacks/manager";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, AIMessageChunk, type BaseMessage } from "@langchain/core/messages";
import { ChatGenerationChunk, type ChatResult } from "@langchain/core/outputs";
import { END, MessagesAnnotation, START, StateGraph, getStore, interrupt, type BaseStore } from "@langchain/langgraph";

export type Chat = typeof MessagesAnnotation.State;

/** A model that streams chunks. Subclasses return them. */
export abstract class Speaker extends BaseChatModel {
  constructor() {
    super({});
  }

  abstract chunks(messages: BaseMessage[]): AsyncGenerator<AIMessageChunk>;

  _llmType() {
    return this.constructor.name.toLowerCase();
  }

  async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const chunks = await Array.fromAsync(this.chunks(messages));
    const { content, tool_calls, usage_metadata, response_metadata } = chunks.reduce((whole, chunk) => whole.concat(chunk));
    const message = new AIMessage({ content, tool_calls, usage_metadata, response_metadata });
    return { generations: [{ message, text: String(content) }] };
  }

  async *_streamResponseChunks(
    messages: BaseMessage[],
    _options: this["ParsedCallOptions"],
    manager?: CallbackManagerForLLMRun,
  ): AsyncGenerator<ChatGenerationChunk> {
    for await (const message of this.chunks(messages)) {
      const chunk = new ChatGenerationChunk({ message, text: String(message.content) });
      yield chunk;
      await manager?.handleLLMNewToken(chunk.text, undefined, undefined, undefined, undefined, { chunk });
    }
  }
}

export const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

/** A model that repeats the last message. After `slowly`, it appends 25 numbers at five per second. */
class Parrot extends Speaker {
  async *chunks(messages: BaseMessage[]) {
    const heard = String(messages.at(-1)?.content);
    const isSlow = heard.startsWith("slowly");
    const numbers = Array.from({ length: isSlow ? 25 : 0 }, (_, number) => ` ${number}`);
    for (const word of ["heard: ", heard, ...numbers, "."]) {
      yield new AIMessageChunk(word);
      await pause(isSlow ? 200 : 0);
      await released(heard);
    }
  }
}

/** Return when a message that begins with `held` has its item in the store. */
export async function released(name: string, store: BaseStore | undefined = getStore()) {
  while (name.startsWith("held") && !(await store?.get(["released"], name))) {
    await pause(50);
  }
}

export const answer = async (state: Chat) => ({ messages: [await new Parrot().invoke(state.messages)] });

const ask = () => ({ messages: [new AIMessage(`decided: ${interrupt({ question: "Answer this?" })}`)] });

/** A graph with one node. `options` are those of the node. */
export const says = (name: string, node: any, options = {}) =>
  new StateGraph(MessagesAnnotation).addNode(name, node, options).addEdge(START, name as any).addEdge(name as any, END).compile();

export const chat = says("answer", answer);
export const approves = says("ask", ask);
