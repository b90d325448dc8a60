/** Graphs with stream transformers of their own. */

import { FakeListChatModel } from "@langchain/core/utils/testing";
import {
  MessagesAnnotation, START, StateGraph, StreamChannel, getWriter, type ProtocolEvent, type StreamTransformer,
} from "@langchain/langgraph";

/** Hides digits and updates, fails on custom events, and counts the events of messages. */
class Censor implements StreamTransformer<{ seen: StreamChannel<unknown> }> {
  seen = StreamChannel.remote<unknown>("seen");
  count = 0;

  init() {
    return { seen: this.seen };
  }

  process({ method, params }: ProtocolEvent) {
    const data = params.data as any;
    if (method === "custom") {
      throw new Error("what is this?");
    }
    if (method === "messages") {
      this.count += 1;
      if (/\d/.test(data.delta?.text ?? "")) {
        data.delta.text = "*";
      }
      if (data.event === "message-finish") {
        (params as any).data = "nothing of the kind";
      }
    }
    return method !== "updates" && method !== "values";
  }

  async finalize() {
    await Promise.resolve();
    this.seen.push({ messages: this.count });
  }
}

async function say() {
  getWriter()?.("a secret");
  return { messages: [await new FakeListChatModel({ responses: ["pin 7"] }).invoke("?")] };
}

const builder = new StateGraph(MessagesAnnotation).addNode("say", say).addEdge(START, "say");
export const censored = builder.compile({ transformers: [() => new Censor()] });
export const broken = builder.compile({
  transformers: [
    () => {
      throw new Error("no censor today");
    },
  ],
});
