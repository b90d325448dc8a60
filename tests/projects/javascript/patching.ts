/** A graph whose node replaces globals and pollutes prototypes, beside graphs that go on. */

import { Annotation, START, StateGraph } from "@langchain/langgraph";

const State = Annotation.Root({
  text: Annotation<string>,
  log: Annotation<unknown[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
  kept: Annotation<unknown>,
});

const patched = () => {
  throw new Error("patched");
};
const patches: Record<string, () => void> = {
  "JSON.parse": () => (JSON.parse = patched as any),
  "Buffer.from": () => (Buffer.from = patched as any),
  "Buffer": () => (globalThis.Buffer = patched as any),
  "Date.now": () => (Date.now = () => 0),
  "Array.prototype.toJSON": () => ((Array.prototype as any).toJSON = () => "patched"),
  "Object.prototype.maxConcurrency": () => ((Object.prototype as any).maxConcurrency = "patched"),
  "Object.prototype.signal": () => Object.defineProperty(Object.prototype, "signal", { value: "patched" }),
  "Object.prototype.callbacks": () => Object.assign(Object.prototype, { callbacks: "patched" }),
};

const breaks: Record<string, () => void> = { // LangGraph itself does not work without these
  "JSON.stringify": () => (JSON.stringify = patched as any),
  Promise: () => (globalThis.Promise = patched as any),
};

const patcher = (all: Record<string, () => void>) => new StateGraph(State)
  .addNode("patch", ({ text }) => {
    all[text]!();
    return { log: [text] };
  })
  .addEdge(START, "patch")
  .compile();
export const patching = patcher(patches);
export const breaking = patcher(breaks);

export const plain = new StateGraph(State)
  .addNode("one", () => ({ log: ["one"], kept: new Map([["a", new Date(0)]]) }))
  .addNode("two", ({ kept }) => ({ log: [(kept as any).get("a").getTime()] }))
  .addEdge(START, "one")
  .addEdge("one", "two")
  .compile({ interruptBefore: ["two"] });
