/** Agents with a scripted model, whose tools leave traces when they are executed. Twins of `hosted/replayed.py`. */

import { existsSync, writeFileSync } from "node:fs";
import net from "node:net";

import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage, ToolMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";
import { tool } from "@langchain/core/tools";
import {
  Annotation, Command, MessagesAnnotation, START, StateGraph, type LangGraphRunnableConfig,
} from "@langchain/langgraph";
import { ToolNode, toolsCondition } from "@langchain/langgraph/prebuilt";
import { z } from "zod";

const State = Annotation.Root({
  ...MessagesAnnotation.spec,
  notes: Annotation<string[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
});
type State = typeof State.State;

let count = 0;

/** Calls the tools that the newest question lists as JSON, [[name, arguments] …], and then repeats their results. */
class Scripted extends BaseChatModel {
  constructor() {
    super({});
  }

  _llmType() {
    return "scripted";
  }

  async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const last = messages.at(-1)!;
    let message = new AIMessage(messages.filter((m) => m.getType() === "tool").map((m) => m.content).join(" "));
    if (last.getType() === "human") {
      const calls = JSON.parse(String(last.content)) as [string, Record<string, unknown>][];
      const tool_calls = calls.map(([name, args]) => ({ name, args, id: `call-${++count}`, type: "tool_call" as const }));
      message = new AIMessage({ content: "", tool_calls });
    }
    return { generations: [{ message, text: String(message.content) }] };
  }
}

const write = tool(
  async ({ path, text }: { path: string; text?: string }) => {
    writeFileSync(path, text ?? "x");
    return `wrote ${text ?? "x"}`;
  },
  { name: "write", description: "Write a file.", schema: z.object({ path: z.string(), text: z.string().optional() }) },
);

const next = tool(async ({ what }: { what: string }) => `${what} ${++count}`, {
  name: "next",
  description: "Count up.",
  schema: z.object({ what: z.string() }),
});

const picture = tool(async ({ name }: { name: string }) => [`picture ${name}`, new Map([["a", 1]])], {
  name: "picture",
  description: "Return a picture with an artifact.",
  schema: z.object({ name: z.string() }),
  responseFormat: "content_and_artifact",
});

const remember = tool(
  async ({ text }: { text: string }, config: LangGraphRunnableConfig & { toolCall: { id: string } }) =>
    new Command({
      update: { notes: [text], messages: [new ToolMessage({ content: "noted", tool_call_id: config.toolCall.id })] },
    }),
  { name: "remember", description: "Add a note.", schema: z.object({ text: z.string() }) },
);

const model = new Scripted();

async function think(state: State) {
  return { messages: [await model.invoke([["system", "be brief"], ...state.messages])] };
}

const agent = new StateGraph(State)
  .addNode("think", think)
  .addNode("tools", new ToolNode([write, next, picture, remember]))
  .addEdge(START, "think")
  .addConditionalEdges("think", toolsCondition)
  .addEdge("tools", "think")
  .compile();
const outer = new StateGraph(State).addNode("inner", agent).addEdge(START, "inner").compile();

const keeps = new StateGraph(State)
  .addNode("stores", async (_: State, { store }: LangGraphRunnableConfig) => {
    await store!.put(["a", "b"], "new", { n: 2 });
    await store!.delete(["a"], "old");
    const found = (await store!.search(["a"], { filter: { n: { $gte: 1 } } })).map(({ key }) => key);
    const names = await store!.listNamespaces({ prefix: ["a"] });
    const [gone, kept] = [await store!.get(["a"], "old"), await store!.get(["a"], "kept")];
    return { notes: [JSON.stringify({ found, names, gone, kept: kept?.value })] };
  })
  .addEdge(START, "stores")
  .compile();

const dials = new StateGraph(State)
  .addNode("dial", async () => {
    const error = await new Promise<Error>((resolve) => net.connect(9, "127.0.0.1").on("error", resolve));
    return { notes: [error.message] };
  })
  .addEdge(START, "dial")
  .compile();

export function score(inputs: any, reference: unknown, output: unknown, run: any) {
  if (inputs.raises) {
    throw new RangeError(inputs.raises);
  }
  return "returns" in inputs ? inputs.returns : { same: reference === output, steps: run.steps };
}

export const missing = existsSync("/nowhere");
export { agent, dials, keeps, outer };
