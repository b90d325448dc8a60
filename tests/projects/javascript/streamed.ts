/** The graphs of the project `streamed` in TypeScript. Their streams are compared with those of the Python graphs. */

import { dispatchCustomEvent } from "@langchain/core/callbacks/dispatch";
import type { CallbackManagerForLLMRun } from "@langchain/core/callbacks/manager";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, AIMessageChunk, type BaseMessage } from "@langchain/core/messages";
import { ChatGenerationChunk, type ChatResult } from "@langchain/core/outputs";
import { RunnableLambda } from "@langchain/core/runnables";
import { tool } from "@langchain/core/tools";
import {
  Annotation, Command, END, MessagesAnnotation, START, Send, StateGraph, getWriter, interrupt,
  type LangGraphRunnableConfig,
} from "@langchain/langgraph";
import { ToolNode, toolsCondition } from "@langchain/langgraph/prebuilt";
import { z } from "zod";

const State = Annotation.Root({
  text: Annotation<string>,
  log: Annotation<unknown[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
});
type State = typeof State.State;
const Chat = MessagesAnnotation;
type Chat = typeof Chat.State;

/** A model that says these words; one with a tool calls it first. */
class Speaker extends BaseChatModel {
  words: string[];
  tool?: string;
  before?: (word: string) => Promise<void>;

  constructor(fields: { words: string[]; tool?: string; before?: (word: string) => Promise<void> }) {
    super({});
    this.words = fields.words;
    this.tool = fields.tool;
    this.before = fields.before;
  }

  _llmType() {
    return "speaker";
  }

  async _generate(messages: BaseMessage[], options: this["ParsedCallOptions"]): Promise<ChatResult> {
    const chunks = await Array.fromAsync(this._streamResponseChunks(messages, options));
    const { message } = chunks.reduce((whole, chunk) => whole.concat(chunk));
    const { content, tool_calls } = message as AIMessageChunk;
    return { generations: [{ message: new AIMessage({ content, tool_calls }), text: String(content) }] };
  }

  async *_streamResponseChunks(
    messages: BaseMessage[],
    _options: this["ParsedCallOptions"],
    manager?: CallbackManagerForLLMRun,
  ): AsyncGenerator<ChatGenerationChunk> {
    if (this.tool !== undefined && messages.at(-1)?.getType() !== "tool") {
      for (const args of ["", '{"city": ', '"Rome"}']) {
        const call = args
          ? { args, index: 0, type: "tool_call_chunk" as const }
          : { name: this.tool, args, id: "call-1", index: 0, type: "tool_call_chunk" as const };
        yield* this.said(new AIMessageChunk({ content: "", tool_call_chunks: [call] }), manager);
      }
      return;
    }
    for (const word of this.words) {
      await this.before?.(word);
      yield* this.said(new AIMessageChunk(word), manager);
    }
  }

  async *said(message: AIMessageChunk, manager?: CallbackManagerForLLMRun) {
    const chunk = new ChatGenerationChunk({ message, text: String(message.content) });
    yield chunk;
    await manager?.handleLLMNewToken(chunk.text, undefined, undefined, undefined, undefined, { chunk });
  }
}

// A model that calls a tool, which writes

const weather = tool(
  async ({ city }: { city: string }, config: LangGraphRunnableConfig) => {
    config.writer?.({ "looks at": city }); // LangChain does not pass the writer on to `getWriter` in a tool
    return `sunny in ${city}`;
  },
  { name: "weather", description: "The weather of a city.", schema: z.object({ city: z.string() }) },
);

export const agent = new StateGraph(Chat)
  .addNode("think", async (state: Chat) => ({
    messages: [await new Speaker({ words: ["it ", "is"], tool: "weather" }).invoke(state.messages)],
  }))
  .addNode("tools", new ToolNode([weather]))
  .addEdge(START, "think")
  .addConditionalEdges("think", toolsCondition)
  .addEdge("tools", "think")
  .compile({ name: "agent" });

// Two floors of subgraphs: a model below, a message returned whole above it

const inner = new StateGraph(Chat)
  .addNode("prepare", async () => {
    getWriter()?.("prepared");
    return {};
  })
  .addNode("speak", async (state: Chat) => ({
    messages: [await new Speaker({ words: ["in", "side"] }).invoke(state.messages)],
  }))
  .addEdge(START, "prepare")
  .addEdge("prepare", "speak");
const outer = new StateGraph(Chat)
  .addNode("inner", inner.compile())
  .addNode("say", async () => ({ messages: [new AIMessage({ content: "whole", id: "whole" })] }))
  .addEdge(START, "inner")
  .addEdge("inner", "say");
export const nested = new StateGraph(Chat).addNode("outer", outer.compile()).addEdge(START, "outer").compile();

// An interrupt in the root, then one in a subgraph

const below = new StateGraph(State)
  .addNode("one", async () => ({ log: ["one"] }))
  .addNode("ask_below", async () => ({ log: [interrupt({ question: "below?" })] }))
  .addEdge(START, "one")
  .addEdge("one", "ask_below");
export const asks = new StateGraph(State)
  .addNode("ask", async () => ({ log: [interrupt("above?")] }))
  .addNode("below", below.compile())
  .addEdge(START, "ask")
  .addEdge("ask", "below")
  .compile();

// Two models at once, which take turns

async function talk() {
  const order = ["l1", "r1", "l2", "left is over", "r2"];
  const turn = async (word: string) => {
    while (order[0] !== word) {
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    order.shift();
  };
  const left = async () => {
    const said = await new Speaker({ words: ["l1", "l2"], before: turn }).invoke("hi");
    await turn("left is over");
    return said;
  };
  const right = () => new Speaker({ words: ["r1", "r2"], before: turn }).invoke("hi");
  return { messages: await Promise.all([left(), right()]) };
}

export const both = new StateGraph(Chat).addNode("talk", talk).addEdge(START, "talk").compile();

// What nodes write themselves, and how they send work on

const plus = RunnableLambda.from((number: number) => number + 1).withConfig({ runName: "plus", tags: ["mine"] });

export const writes = new StateGraph(State)
  .addNode(
    "write",
    async () => {
      const writer = getWriter();
      writer?.({ n: 1 });
      writer?.("text");
      writer?.(null);
      await dispatchCustomEvent("mine", { x: 1 });
      await plus.invoke(1);
      return new Command({ update: { log: ["write"] }, goto: [new Send("leaf", { text: "a" })] });
    },
    { ends: ["leaf"] },
  )
  .addNode("leaf", async (state: State) => {
    getWriter()?.([1, 2]);
    return { log: [`leaf ${state.text}`] };
  })
  .addNode("silent", async () => null)
  .addEdge(START, "write")
  .addEdge("leaf", "silent")
  .compile();

// Three parallel nodes, two of which interrupt, before a node that interrupts twice

export const parallels = new StateGraph(State)
  .addNode("left", async () => ({ log: [interrupt("left?")] }))
  .addNode("right", async () => ({ log: [interrupt("right?")] }))
  .addNode("third", async () => ({ log: ["third"] }))
  .addNode("twice", async () => ({ log: [interrupt("first?"), interrupt("second?")] }))
  .addEdge(START, "left")
  .addEdge("left", "twice")
  .addEdge(START, "right")
  .addEdge("right", "twice")
  .addEdge(START, "third")
  .addEdge("third", "twice")
  .compile();

// Keys that LangChain's events treat as whole values; run with breakpoints and from earlier checkpoints

const Asked = Annotation.Root({ input: Annotation<string>, output: Annotation<string> });

export const steps = new StateGraph(Asked)
  .addNode("first", async ({ input }) => ({ output: `${input} first` }))
  .addNode("second", async ({ output }) => ({ output: `${output} second` }))
  .addEdge(START, "first")
  .addEdge("first", "second")
  .compile();

// A subgraph that hands over to its parent, and one that fails

class BrokenError extends Error {
  name = "BrokenError";
}

const hands = new StateGraph(State)
  .addNode("one", async () => ({ log: ["one"] }))
  .addNode("hand_over", async () =>
    new Command({ graph: Command.PARENT, update: { log: ["handed over"] }, goto: "breaks" }))
  .addEdge(START, "one")
  .addEdge("one", "hand_over");
const breaks = new StateGraph(State)
  .addNode("one", async () => ({ log: ["one"] }))
  .addNode("broken", async () => {
    throw new BrokenError("it broke");
  })
  .addEdge(START, "one")
  .addEdge("one", "broken");
export const fails = new StateGraph(State)
  .addNode("hands", hands.compile(), { ends: ["breaks"] })
  .addNode("breaks", breaks.compile())
  .addEdge(START, "hands")
  .compile();

// A model that reports its tokens without their chunks, which Python has not

class Typist extends Speaker {
  async *said(message: AIMessageChunk, manager?: CallbackManagerForLLMRun) {
    const text = String(message.content);
    yield new ChatGenerationChunk({ message, text });
    await manager?.handleLLMNewToken(text);
  }
}

export const types = new StateGraph(Chat)
  .addNode("speak", async () => ({ messages: [await new Typist({ words: ["a", "b"] }).invoke("hi")] }))
  .addNode("later", async () => ({}))
  .addEdge(START, "speak")
  .addEdge("speak", "later")
  .compile();

// Reasoning as providers' packages stream it

function reasoning(provider: string, chunks: ConstructorParameters<typeof AIMessageChunk>[0][]) {
  class Thinker extends Speaker {
    async *_streamResponseChunks(_messages: BaseMessage[], _options: unknown, manager?: CallbackManagerForLLMRun) {
      for (const fields of chunks as any[]) {
        const response_metadata = { model_provider: provider, ...fields.response_metadata };
        yield* this.said(new AIMessageChunk({ ...fields, response_metadata }), manager);
      }
    }
  }
  return new StateGraph(Chat)
    .addNode("think", async () => ({ messages: [await new Thinker({ words: [] }).invoke("hi")] }))
    .addEdge(START, "think")
    .compile();
}

export const anthropic = reasoning("anthropic", [
  { content: [{ type: "thinking", thinking: "", signature: "", index: 0 }] },
  { content: [{ type: "thinking", thinking: "hm", index: 0 }] },
  { content: [{ type: "thinking", signature: "s1", index: 0 }] },
  { content: [{ type: "text", text: "yes", index: 1 }] },
  { content: "", additional_kwargs: { stop_reason: "end_turn" } },
]);
const summary = [{ type: "summary_text", text: "hm", index: 0 }];
export const openai = reasoning("openai", [
  {
    content: [{ type: "reasoning", reasoning: "hm", index: 0 }],
    additional_kwargs: { reasoning: { type: "reasoning", id: "r1", summary } },
  },
  { content: [{ type: "text", text: "yes", index: 0 }] },
  { content: [], response_metadata: { output: [{ type: "reasoning", id: "r1", summary }] } },
]);

// A model whose stream is hidden: the node returns its answer whole

const hidden = new Speaker({ words: ["in ", "secret"] }).withConfig({ tags: ["nostream"] });
export const whispers = new StateGraph(Chat)
  .addNode("speak", async () => ({ messages: [await hidden.invoke("hi")] }))
  .addEdge(START, "speak")
  .compile();

// A loop that ends after three rounds

export const loops = new StateGraph(State)
  .addNode("count", async ({ text, log }) => {
    getWriter()?.({ round: log.length });
    return { log: [text.repeat(log.length + 1)] };
  })
  .addEdge(START, "count")
  .addConditionalEdges("count", function goes_on({ log }) { return log.length < 3 ? "count" : END; }, ["count", END])
  .compile();

// A model whose answer has blocks: its reasoning, in two parts, and then its words

class Thinker extends Speaker {
  async *_streamResponseChunks(_messages: BaseMessage[], _options: unknown, manager?: CallbackManagerForLLMRun) {
    for (const word of this.words) {
      const kind = word === "so" ? "text" : "reasoning";
      yield* this.said(new AIMessageChunk({ content: [{ type: kind, [kind]: word, index: Number(kind === "text") }] as any }), manager);
    }
  }
}

export const thinks = new StateGraph(Chat)
  .addNode("ponder", async () => ({ messages: [await new Thinker({ words: ["hm", ", yes", "so"] }).invoke("hi")] }))
  .addEdge(START, "ponder")
  .compile();
