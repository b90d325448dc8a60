/** Agents with a scripted model, whose tools leave traces when they are executed. Twins of `hosted/replayed.py`. */

import { existsSync, writeFileSync } from "node:fs";
import net from "node:net";

import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage, ToolMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";
import { tool } from "@langchain/core/tools";
import {
  Annotation, Command, getCurrentTaskInput, interrupt, MessagesAnnotation, MessagesDeltaValue, Send, START, StateGraph,
  StateSchema,
  type LangGraphRunnableConfig,
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
    message.usage_metadata = { input_tokens: 2, output_tokens: 1, total_tokens: 3 };
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

const count_ = tool(async ({ what }: { what: string }) => `${what} 1`, {
  name: "count",
  description: "Count up.",
  schema: z.object({ what: z.string() }),
});

const asks = tool(async ({ question }: { question: string }) => `answered ${interrupt(question)}`, {
  name: "asks",
  description: "Ask a person.",
  schema: z.object({ question: z.string() }),
});

const breaks = tool(
  async ({ reason }: { reason: string }): Promise<string> => {
    throw new Error(reason);
  },
  { name: "breaks", description: "Raise an error.", schema: z.object({ reason: z.string() }) },
);

const leave = tool(
  async (_: object, config: LangGraphRunnableConfig & { toolCall: { id: string } }) =>
    new Command({
      goto: "elsewhere",
      update: { messages: [new ToolMessage({ content: "left", tool_call_id: config.toolCall.id })] },
    }),
  { name: "leave", description: "Go to another node.", schema: z.object({}) },
);

const handOver = tool(
  async (_: object, config: LangGraphRunnableConfig & { toolCall: { id: string } }) => {
    const { messages } = getCurrentTaskInput(config) as State;
    const answer = new ToolMessage({ content: "handed over", tool_call_id: config.toolCall.id });
    const update = { notes: ["to bob"], messages: [...messages, answer] };
    return new Command({ goto: "bob", graph: Command.PARENT, update });
  },
  { name: "hand_over", description: "Hand over to Bob.", schema: z.object({}) },
);

const model = new Scripted();

async function think(state: State) {
  return { messages: [await model.invoke([["system", "be brief"], ...state.messages])] };
}

async function think_louder(state: State) {
  const message = await model.invoke(state.messages);
  return { messages: [message.tool_calls?.length ? message : new AIMessage(`${message.content}!`)] };
}

const agentOf = (tools: any[], thinks = think) =>
  new StateGraph(State)
    .addNode("think", thinks)
    .addNode("tools", new ToolNode(tools))
    .addNode("elsewhere", () => ({ notes: ["elsewhere"] }))
    .addEdge(START, "think")
    .addConditionalEdges("think", toolsCondition)
    .addEdge("tools", "think")
    .compile();

const TOOLS = [write, next, picture, remember, count_, asks, breaks, leave];
const agent = agentOf(TOOLS);
const louder = agentOf(TOOLS, think_louder);

/** A tool that delegates to another agent. */
const task = tool(
  async ({ description }: { description: string }) => {
    const { messages } = await agentOf([count_]).invoke({ messages: [["human", description]] });
    return String(messages.at(-1)!.content);
  },
  { name: "task", description: "Delegate.", schema: z.object({ description: z.string() }) },
);
const delegating = agentOf([task]);

/** As in `createAgent`: each call is a task of its own. */
function eachCall({ messages }: State) {
  const calls = (messages.at(-1) as AIMessage).tool_calls ?? [];
  return calls.map((call) => new Send("tools", { messages: [new AIMessage({ content: "", tool_calls: [call] })] }));
}

const fanned = new StateGraph(State)
  .addNode("think", think)
  .addNode("tools", new ToolNode(TOOLS))
  .addEdge(START, "think")
  .addConditionalEdges("think", eachCall, ["tools"])
  .addEdge("tools", "think")
  .compile();

/** The checkpoints have the changes of the messages. */
const Changes = new StateSchema({ messages: MessagesDeltaValue });
const changes = new StateGraph(Changes)
  .addNode("think", think as any)
  .addNode("tools", new ToolNode(TOOLS))
  .addEdge(START, "think")
  .addConditionalEdges("think", eachCall as any, ["tools"])
  .addEdge("tools", "think")
  .compile();

/** As middleware of LangChain: the tool gets other arguments than the message has. */
const adjusting = new StateGraph(State)
  .addNode("think", think)
  .addNode("tools", async ({ messages }: State) => {
    const calls = (messages.at(-1) as AIMessage).tool_calls ?? [];
    const changed = calls.map((call) => ({ ...call, args: { what: `${call.args.what}!` }, type: "tool_call" as const }));
    return { messages: await Promise.all(changed.map((call) => next.invoke(call as any))) };
  })
  .addEdge(START, "think")
  .addEdge("think", "tools")
  .compile();

const team = new StateGraph(State)
  .addNode("alice", agentOf([handOver]), { ends: ["bob"] })
  .addNode("bob", () => ({ notes: ["bob"], messages: [new AIMessage("Bob here")] }))
  .addEdge(START, "alice")
  .compile();

const streaming = new StateGraph(State)
  .addNode("streams", async ({ messages }: State) => {
    let whole: any;
    for await (const chunk of await model.stream(messages)) {
      whole = whole === undefined ? chunk : whole.concat(chunk);
    }
    return { messages: [new AIMessage({ content: whole.content, tool_calls: whole.tool_calls })] };
  })
  .addEdge(START, "streams")
  .compile();

const failing = new StateGraph(State)
  .addNode("think", think)
  .addNode("fails", () => {
    throw new Error("broken");
  })
  .addEdge(START, "think")
  .addEdge("think", "fails")
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
export { adjusting, agent, changes, delegating, dials, failing, fanned, keeps, louder, outer, streaming, team };
