/** Graphs of the project `kitchen`. */

import { existsSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { AIMessage, AIMessageChunk } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { Annotation, Command, END, START, StateGraph, getWriter, interrupt } from "@langchain/langgraph";
import { z } from "zod";
import { Speaker, pause, says } from "./chat.js";

const State = Annotation.Root({
  text: Annotation<string>,
  n: Annotation<number>,
  seconds: Annotation<number>,
  how: Annotation<string>,
  file: Annotation<string>,
  log: Annotation<unknown[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
});
type State = typeof State.State;

/** A graph of nodes one after the other. */
function chain(...nodes: ((state: State) => unknown)[]) {
  const builder = new StateGraph(State) as any;
  let previous: string = START;
  for (const node of nodes) {
    builder.addNode(node.name, node).addEdge(previous, node.name);
    previous = node.name;
  }
  return builder.addEdge(previous, END).compile();
}

const node = ({ text = "" }: State) => ({ log: [text] });
export const echo = chain(node);

const before = () => ({ log: ["before"] });
const ask = () => ({ log: [interrupt({ question: "may I?" })] });
const after = () => ({ log: ["after"] });
export const asks = chain(before, ask, after);

export const goes = new StateGraph(State)
  .addNode("choose", () => new Command({ goto: "after", update: { log: ["chosen"] } }), { ends: ["after"] })
  .addNode("after", after)
  .addEdge(START, "choose")
  .compile();

export const nested = new StateGraph(State)
  .addNode("child", chain(before, after))
  .addEdge(START, "child")
  .addEdge("child", END)
  .compile();

/** A model with a prepared answer. It streams the answer word by word. */
class GenericFakeChatModel extends Speaker {
  constructor(readonly answer: AIMessage) {
    super();
  }

  async *chunks() {
    const { content, ...more } = this.answer;
    const words = String(content).split(/(?<= )/);
    for (const word of words.slice(0, -1)) {
      yield new AIMessageChunk(word);
    }
    yield new AIMessageChunk({ ...more, content: words.at(-1)! });
  }
}

const speak = async () => ({ messages: [await new GenericFakeChatModel(new AIMessage("hello big world")).invoke("hi")] });
export const speaks = says("speak", speak);

const lookUp = tool(
  async ({ word }) => {
    await pause(50);
    return `${word} means something`;
  },
  { name: "look_up", description: "Look a word up.", schema: z.object({ word: z.string() }) },
);

const research = async ({ text = "sea" }: State) => ({ log: [await lookUp.invoke({ word: text })] });
const draft = async () => ({ log: [(await new GenericFakeChatModel(new AIMessage("a plan")).invoke("plan")).text] });

/** A subgraph with a tool and a model, then a question. */
export const plans = new StateGraph(State)
  .addNode("work", chain(research, draft))
  .addNode("ask", ask)
  .addNode("after", after)
  .addEdge(START, "work")
  .addEdge("work", "ask")
  .addEdge("ask", "after")
  .compile();

/** Makes `n` model calls, one after the other. */
async function consume({ n = 1, how = "1", seconds = 0 }: State) {
  const usage_metadata = { input_tokens: Number(how), output_tokens: 2, total_tokens: 3 };
  for (let call = 0; call < n; call++) {
    const answer = new AIMessage({ content: "hello", usage_metadata, response_metadata: { model_name: "large" } });
    await new GenericFakeChatModel(answer).invoke("hi");
    await pause(seconds * 1000);
  }
  return {};
}
export const consumes = chain(consume);

async function write({ n = 3, seconds = 0 }: State) {
  for (let i = 0; i < n; i++) {
    getWriter()?.({ i });
    await pause(seconds * 1000);
  }
  return { log: ["written"] };
}
export const writes = chain(write);

/** Takes a step: reports its number, then waits. */
async function count({ log, seconds = 0.1 }: State) {
  getWriter()?.({ step: log.length });
  await pause(seconds * 1000);
  return { log: [log.length] };
}
export const counts = new StateGraph(State)
  .addNode("count", count)
  .addEdge(START, "count")
  .addConditionalEdges("count", ({ log, n }) => (log.length >= n ? END : "count"))
  .compile()
  .withConfig({ recursionLimit: 10_000 }); // the default of LangGraph for Python, about

async function sleep({ seconds = 60 }: State) {
  getWriter()?.("asleep");
  await pause(seconds * 1000);
  return { log: ["woke"] };
}
export const sleeps = chain(before, sleep);

class ValueError extends Error {
  name = "ValueError";
}

function boom() {
  throw new ValueError("boom happened");
}
export const fails = chain(before, boom);

/** Ends the process, always or (with a file) only the first time. */
function die({ file }: State) {
  const mark = `${homedir()}/${file}`;
  if (file && existsSync(mark)) {
    return { log: ["survived"] };
  }
  if (file) {
    writeFileSync(mark, "x");
  }
  process.kill(process.pid, "SIGKILL");
}
export const dies = chain(die);

function say({ n = 0 }: State) {
  console.log("hello from the kitchen");
  for (let i = 0; i < n; i++) {
    console.log(`line ${i} ${"x".repeat(200)}`);
  }
  return { log: ["said"] };
}
export const prints = chain(say);
