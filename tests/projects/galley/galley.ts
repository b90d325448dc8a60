/** The graphs of the projects `kitchen` and `chatroom` that tests of clients use, in TypeScript. */

import { setTimeout as sleep } from "node:timers/promises";
import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { FakeListChatModel } from "@langchain/core/utils/testing";
import {
  Annotation, END, MessagesAnnotation, START, Send, StateGraph, getWriter, interrupt, type LangGraphRunnableConfig,
} from "@langchain/langgraph";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import { RemoteGraph } from "@langchain/langgraph/remote";
import { Client } from "@langchain/langgraph-sdk";
import { z } from "zod";

const State = Annotation.Root({
  text: Annotation<string>,
  n: Annotation<number>,
  seconds: Annotation<number>,
  how: Annotation<string>,
  log: Annotation<any[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
});
type State = typeof State.State;
const Chat = MessagesAnnotation;
type Chat = typeof Chat.State;
const Words = z.object({ word: z.string().optional(), loud: z.boolean().optional() });

const before = async () => ({ log: ["before"] });
const ask = async () => ({ log: [interrupt({ question: "may I?" })] });
const after = async () => ({ log: ["after"] });

export const echo = new StateGraph(State)
  .addNode("node", async ({ text }) => ({ log: [text ?? ""] }))
  .addEdge(START, "node")
  .compile();

export const greets = new StateGraph(State, Words)
  .addNode("greet", async (_: State, { context }: LangGraphRunnableConfig<z.infer<typeof Words>>) => {
    const word = context?.word ?? "nothing";
    return { log: [context?.loud ? word.toUpperCase() : word] };
  })
  .addEdge(START, "greet")
  .compile();

export const asks = new StateGraph(State)
  .addNode("before", before)
  .addNode("ask", ask)
  .addNode("after", after)
  .addEdge(START, "before")
  .addEdge("before", "ask")
  .addEdge("ask", "after")
  .compile();

const child = new StateGraph(State)
  .addNode("before", before)
  .addNode("after", after)
  .addEdge(START, "before")
  .addEdge("before", "after")
  .compile();
export const nested = new StateGraph(State).addNode("child", child).addEdge(START, "child").addEdge("child", END).compile();

const said = async (text: string, messages: BaseMessage[]) =>
  await new FakeListChatModel({ responses: [text] }).invoke(messages);

export const speaks = new StateGraph(Chat)
  .addNode("speak", async ({ messages }) => ({ messages: [await said("hello big world", messages)] }))
  .addEdge(START, "speak")
  .compile();

export const writes = new StateGraph(State)
  .addNode("write", async ({ n = 3, seconds = 0 }: State) => {
    for (let i = 0; i < n; i++) {
      getWriter()?.({ i });
      await sleep(seconds * 1000);
    }
    return { log: ["written"] };
  })
  .addEdge(START, "write")
  .compile();

export const counts = new StateGraph(State)
  .addNode("count", async ({ log, seconds = 0.1 }: State) => {
    getWriter()?.({ step: log.length });
    await sleep(seconds * 1000);
    return { log: [log.length] };
  })
  .addEdge(START, "count")
  .addConditionalEdges("count", ({ log, n }) => (log.length >= n ? END : "count"), ["count", END])
  .compile();

export const sleeps = new StateGraph(State)
  .addNode("before", before)
  .addNode("sleep", async ({ seconds = 60 }: State, { signal }: LangGraphRunnableConfig) => {
    getWriter()?.("asleep");
    await sleep(seconds * 1000, null, { signal });
    return { log: ["woke"] };
  })
  .addEdge(START, "before")
  .addEdge("before", "sleep")
  .compile();

class ValueError extends Error {
  name = "ValueError";
}

export const fails = new StateGraph(State)
  .addNode("before", before)
  .addNode("boom", async () => {
    throw new ValueError("boom happened");
  })
  .addEdge(START, "before")
  .addEdge("before", "boom")
  .compile();

// Graphs that call their own deployment

export const recurses = new StateGraph(State)
  .addNode("recurse", async ({ n, how }: State) => {
    if (!n) {
      return { log: ["bottom"] };
    }
    const answer = (await new Client().runs.wait(null, "recurses", { input: { n: n - 1, how } })) as unknown as State;
    return { log: [...answer.log, "called"] };
  })
  .addEdge(START, "recurse")
  .compile();

/** A graph of this deployment, by its name in `how`, as a node. */
export const far = new StateGraph(State)
  .addNode("far", async ({ text, how }: State, config: LangGraphRunnableConfig) => {
    const { log } = await new RemoteGraph({ graphId: how }).invoke({ text }, { ...config, configurable: {} });
    return { log };
  })
  .addNode("near", async () => ({ log: ["near"] }))
  .addEdge(START, "far")
  .addEdge("far", "near")
  .compile();

// Conversations

const heard = (message: BaseMessage) => `heard: ${message.content}.`;
const answer = async ({ messages }: Chat) => ({ messages: [await said(heard(messages.at(-1)!), messages)] });

export const chat = new StateGraph(Chat).addNode("answer", answer).addEdge(START, "answer").compile();
export const approves = new StateGraph(Chat)
  .addNode("ask", async () => ({ messages: [new AIMessage(`decided: ${interrupt({ question: "Answer this?" })}`)] }))
  .addEdge(START, "ask")
  .compile();

const find = tool(
  async function* ({ about }: { about: string }) {
    yield* ["looking ", "for ", about];
    if (about === "nothing") {
      throw new ValueError("nobody knows");
    }
    return `${about} is known`;
  },
  { name: "find", description: "Tell what is known of something.", schema: z.object({ about: z.string() }) },
);
const task = tool(
  async ({ description }: { description: string }) => {
    const { messages } = await chat.invoke({ messages: [new HumanMessage(description)] });
    return String(messages.at(-1)!.content);
  },
  {
    name: "task",
    description: "Have somebody else listen.",
    schema: z.object({ description: z.string(), subagent_type: z.string() }),
  },
);

export const helps = new StateGraph(Chat)
  .addNode("plan", async ({ messages }: Chat) => {
    if (messages.at(-1)!.getType() === "tool") {
      const results = messages.filter((message) => message.getType() === "tool").map(({ content }) => content);
      return { messages: [await said(`so: ${results.join("")}`, messages)] };
    }
    const [name, ...words] = String(messages.at(-1)!.content).split(" ");
    const calls = words.map((word) => ({
      name,
      args: name === "task" ? { description: word, subagent_type: "listener" } : { about: word },
      id: `call-${crypto.randomUUID()}`,
      type: "tool_call" as const,
    }));
    return { messages: [new AIMessage({ content: "", tool_calls: calls })] };
  })
  .addNode("tools", new ToolNode([find, task]))
  .addEdge(START, "plan")
  .addConditionalEdges(
    "plan",
    ({ messages }) => {
      const calls = (messages.at(-1) as AIMessage).tool_calls ?? [];
      return calls.length ? calls.map((call) => new Send("tools", { messages, lg_tool_call: call })) : END;
    },
    ["tools", END],
  )
  .addEdge("tools", "plan")
  .compile();

export const researches = new StateGraph(Chat)
  .addNode("research", async ({ messages }: Chat) => {
    const notes = await chat.invoke({ messages: [new HumanMessage(String(messages.at(-1)!.content))] });
    return { messages: [new AIMessage(`notes taken: ${notes.messages.length}`)] };
  })
  .addEdge(START, "research")
  .compile();

const asking = (word: string) => async () => ({
  messages: [new AIMessage(`${word}: ${interrupt({ question: `${word}?` })}`)],
});

export const asks_twice = new StateGraph(Chat)
  .addNode("ask_first", asking("first"))
  .addNode("ask_second", asking("second"))
  .addEdge(START, "ask_first")
  .addEdge(START, "ask_second")
  .compile();
