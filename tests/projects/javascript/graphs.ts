/** Graphs that show one behaviour of the Node host each. */

import { Document } from "@langchain/core/documents";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, HumanMessage } from "@langchain/core/messages";
import {
  Annotation, END, MessagesAnnotation, START, StateGraph, getWriter, interrupt, type LangGraphRunnableConfig,
} from "@langchain/langgraph";
import { z } from "zod";

const State = Annotation.Root({
  text: Annotation<string>,
  log: Annotation<unknown[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
  kept: Annotation<unknown>,
});
type State = typeof State.State;

function chain(...nodes: ((state: State, config: LangGraphRunnableConfig) => unknown)[]) {
  const builder = new StateGraph(State) as any;
  let before: string = START;
  for (const node of nodes) {
    builder.addNode(node.name, node);
    builder.addEdge(before, node.name);
    before = node.name;
  }
  return builder.addEdge(before, END);
}

export const echo = new StateGraph(MessagesAnnotation)
  .addNode("echo", (state) => ({ messages: [new HumanMessage(`echo ${state.messages.at(-1)?.content}`)] }))
  .addEdge(START, "echo")
  .compile();

const one = () => ({ log: ["one"] });
const two = () => ({ log: ["two"] });
const three = () => ({ log: ["three"] });
export const steps = chain(one, two, three).compile();
const call = async () => {
  const { log } = await steps.invoke({ text: "called" });
  return { log };
};
export const calls = chain(call).compile(); // without a declaration of its subgraph
export const builder = chain(one, two);
export const promised = Promise.resolve(chain(one).compile());
export const made = async (config: LangGraphRunnableConfig) => chain(() => ({ log: [config.configurable?.wish] })).compile();
const openings: unknown[] = [];
export const tells_openings = (_: LangGraphRunnableConfig, { accessContext, executionRuntime: execution }: any) => {
  openings.push([accessContext, execution && (execution.context ?? "none")]);
  const tell = () => ({ log: openings });
  return chain(tell).compile();
};
export const wrapped = { graph: chain(one).compile() };
export const wrong = () => "no graph";
export const text = "no graph";

const first = () => ({ log: [interrupt("first?"), interrupt("second?")] });
export const asks_twice = chain(first).compile();

const parallel = new StateGraph(State)
  .addNode("left", () => ({ log: [interrupt("left?")] }))
  .addNode("middle", () => ({ log: ["middle"] }))
  .addNode("right", () => ({ log: [interrupt("right?")] }))
  .addNode("last", () => ({ log: ["last"] }));
for (const name of ["left", "middle", "right"] as const) {
  parallel.addEdge(START, name).addEdge(name, "last");
}
export const parallels = parallel.compile();

class Broken extends Error {}
const fail = () => {
  throw new Broken("it broke");
};
export const fails = chain(one, fail).compile();

const sleep = (_: State, config: LangGraphRunnableConfig) =>
  new Promise((resolve, reject) => {
    getWriter()?.("sleeping");
    const timer = setTimeout(resolve, 60_000, {});
    config.signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new Error("aborted"));
    });
  });
export const sleeps = chain(sleep).compile();
const swallow = async () => {
  getWriter()?.("sleeping");
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  console.log("still here");
  return { log: ["late"] };
};
export const swallows = chain(swallow).compile();

const keep = (state: State) => ({
  kept: {
    date: new Date(0),
    map: new Map([["a", new Set([1])]]),
    big: 12345678901234567890n,
    bytes: new Uint8Array([1, 2]),
    missing: undefined,
    infinite: Infinity,
    document: new Document({ pageContent: "page", metadata: { n: 1 } }),
    pattern: /a+/gi,
    error: new TypeError("wrong"),
    client: state.text ? JSON.parse(state.text) : null,
  },
});
const tell = ({ kept }: State) => {
  const found = kept as any;
  return {
    log: [
      found.date instanceof Date, found.map.get("a").has(1), typeof found.big, found.bytes instanceof Uint8Array,
      "missing" in found, found.infinite, found.document instanceof Document, found.pattern.flags,
      found.error.name, JSON.stringify(found.client),
    ],
  };
};
export const keeps = chain(keep, tell).compile({ interruptBefore: ["tell"] });
const keepFunction = () => ({ kept: { inner: () => 1 } });
export const keeps_function = chain(keepFunction).compile();

const print = () => {
  console.log("one\ntwo");
  console.error(new Broken("printed"));
  process.stdout.write("part ");
  process.stdout.write("of a line\n");
  console.warn("warned");
  console.debug("debugged");
  return {};
};
export const prints = chain(print).compile();
const traced = (_: State, config: any) => {
  const tracers = config.callbacks.handlers.filter((handler: any) => handler.name === "langchain_tracer");
  return { log: tracers.map(({ projectName, exampleId }: any) => [projectName ?? null, exampleId ?? null]) };
};
export const traces = chain(traced).compile();
const exitNow = () => process.exit(7);
export const exits = chain(exitNow).compile();
const throwLater = async () => {
  setTimeout(() => {
    throw new Broken("thrown later");
  });
  await new Promise((resolve) => setTimeout(resolve, 50));
  return { log: ["done"] };
};
export const throws_later = chain(throwLater).compile();
const rejectLater = async () => {
  void Promise.reject(new Broken("not awaited"));
  await new Promise((resolve) => setTimeout(resolve, 50));
  return { log: ["done"] };
};
export const rejects_later = chain(rejectLater).compile();
const sleeper = new Int32Array(new SharedArrayBuffer(4)); // waiting for it blocks without using the processor
function block() {
  const end = Date.now() + 7_500;
  while (Date.now() < end) Atomics.wait(sleeper, 0, 0, 20);
  return { log: ["over"] };
}
export const blocks = chain(block).compile();
const blockForLong = async () => {
  getWriter()?.("begins");
  await new Promise((resolve) => setTimeout(resolve, 100));
  const end = Date.now() + 600_000;
  while (Date.now() < end) Atomics.wait(sleeper, 0, 0, 20);
};
export const blocks_for_long = chain(blockForLong).compile();
const patch = () => {
  JSON.stringify = () => "patched";
  return { log: ["patched"] };
};
export const patches = chain(patch).compile();
const flood = () => {
  for (let count = 0; count < 200; count++) {
    getWriter()?.("x".repeat(100_000));
  }
  return {};
};
export const floods = chain(flood).compile();

const look = (_: State, config: LangGraphRunnableConfig) => ({ log: [config.context, config.configurable?.colour ?? null] });
export const looks = chain(look).compile();
export const checks_context = new StateGraph(State, z.object({ depth: z.number(), tone: z.string().default("plain") }))
  .addNode("look", look)
  .addEdge(START, "look")
  .compile();

const store = async (_: State, config: LangGraphRunnableConfig) => {
  await config.store!.put(["a"], "key", { n: 1 });
  const item = await config.store!.get(["a"], "key");
  const found = await config.store!.search(["a"]);
  const namespaces = await config.store!.listNamespaces({ prefix: ["a"] });
  await config.store!.delete(["a"], "key");
  return { log: [item?.value, item?.createdAt instanceof Date, found.length, namespaces] };
};
export const stores = chain(store).compile();

class Costly extends BaseChatModel {
  constructor(private model_name: unknown) {
    super({});
  }

  _llmType() {
    return "costly";
  }

  async _generate() {
    const usage_metadata = { input_tokens: 2, output_tokens: 1, total_tokens: 3 };
    return { generations: [{ text: "a", message: new AIMessage({ content: "a", usage_metadata, response_metadata: { model_name: this.model_name } }) }] };
  }
}

/** Calls the model that `kept` names with the callbacks of the run, and with others in their place. */
async function spend({ kept }: State) {
  const model = new Costly(kept);
  await model.invoke("?");
  await model.invoke("?", { callbacks: [] });
  await model.invoke("?", { callbacks: [{ handleLLMEnd: () => {} }] });
  return {};
}
export const spends = chain(spend).compile();

export const described = new StateGraph(z.object({ topic: z.string().describe("the topic"), depth: z.number().optional() }))
  .addNode("inner", steps as any)
  .addNode("end", () => ({}))
  .addEdge(START, "inner")
  .addEdge("inner", "end")
  .compile();
