/** Graphs for faults of their host: they kill it in a chosen phase of a run, exhaust it, or block it. */

import { spawn } from "node:child_process";
import { appendFileSync, writeFileSync } from "node:fs";
import path from "node:path";

import { Annotation, END, START, StateGraph, getWriter, interrupt, type LangGraphRunnableConfig } from "@langchain/langgraph";

const State = Annotation.Root({
  n: Annotation<number>,
  seconds: Annotation<number>,
  file: Annotation<string>,
  log: Annotation<unknown[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
});
type State = typeof State.State;

const pause = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const inHome = (name: string) => path.join(process.env.HOME!, name);

/** Kill the host in this phase of a run, but only once for each run. */
function dieOnce(phase: string, { configurable }: LangGraphRunnableConfig) {
  if (!configurable?.dies?.includes(phase)) {
    return;
  }
  try {
    writeFileSync(inHome(`died-${configurable.thread_id}-${phase}`), "", { flag: "wx" });
  } catch {
    return;
  }
  process.kill(process.pid, "SIGKILL");
}

function leaveChild() {
  spawn("sleep", ["54321"], { detached: true, stdio: "ignore" }).unref();
}

// Counting

async function step({ log, seconds, file }: State, config: LangGraphRunnableConfig) {
  const number = log.length;
  appendFileSync(inHome(file), `${number}\n`);
  getWriter()?.({ step: number });
  await pause(seconds ?? 0);
  if (number === 1 && config.configurable?.dies?.includes("step")) {
    leaveChild();
    await pause(4); // until the runner has measured the host's processes
    dieOnce("step", config);
  }
  return { log: [number] };
}

function ask(_state: State, config: LangGraphRunnableConfig) {
  try {
    return { log: [interrupt("go on?")] };
  } finally {
    dieOnce("interrupt", config);
  }
}

const counting = new StateGraph(State)
  .addNode("step", step)
  .addNode("ask", ask)
  .addEdge(START, "step")
  .addConditionalEdges("step", ({ log, n }: State) => (log.length < n ? "step" : "ask"), ["step", "ask"])
  .addEdge("ask", END);

export function counts(config: LangGraphRunnableConfig) {
  dieOnce("begin", config);
  const graph = counting.compile();
  const { getState } = graph;
  graph.getState = function (...given) {
    dieOnce("end", config); // the host reads the state when the graph has returned
    return getState.apply(this, given);
  };
  return graph;
}

// Limits

function alone(node: (state: State) => unknown) {
  return new StateGraph(State).addNode("node", node as any).addEdge(START, "node").addEdge("node", END).compile();
}

export const works = alone(() => ({ log: ["worked"] }));

const held: unknown[] = [];
async function holdHeap(most: number) {
  while (process.memoryUsage().heapUsed < most * 2 ** 20) {
    held.push(new Array(500_000).fill(0.5)); // 4 MB, which garbage collection need not look into
    await pause(0); // a host that does not answer would be ended as blocked
  }
}
export const fills_heap = alone(async ({ n }) => {
  await holdHeap(n);
  return { log: ["filled"] };
});
export const exhausts_heap = alone(() => holdHeap(Infinity));
export const fills_buffers = alone(async () => {
  for (;;) {
    held.push(Buffer.alloc(20_000_000, 1));
    await pause(0.1);
  }
});
function block() {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
}
export const blocks = alone(async () => {
  leaveChild();
  getWriter()?.("blocks");
  await pause(0.1); // until the event is sent
  block();
});
