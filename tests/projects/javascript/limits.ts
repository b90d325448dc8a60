/** Graphs that misuse their host in one way each. */

import { Worker } from "node:worker_threads";

import { Annotation, END, START, StateGraph, getWriter, type LangGraphRunnableConfig } from "@langchain/langgraph";

const State = Annotation.Root({
  text: Annotation<string>,
  log: Annotation<unknown[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
  kept: Annotation<unknown>,
});

function graph(node: (state: typeof State.State, config: LangGraphRunnableConfig) => unknown) {
  return (new StateGraph(State) as any).addNode("node", node).addEdge(START, "node").addEdge("node", END).compile();
}

const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export const works = graph(() => ({ log: ["worked"] }));

// Errors

const fails = () => {
  throw new Error("its own code fails");
};
const unreadable = () =>
  Object.defineProperties(new Error("hidden"), { message: { get: fails }, name: { get: fails }, stack: { get: fails } });
const doubled = (levels: number): Error => {
  let error = new Error("leaf");
  for (let level = 0; level < levels; level++) {
    error = new AggregateError([error, error], "level");
  }
  return error;
};
const own = new Error("its own cause");
own.cause = own;
const THROWN: Record<string, () => unknown> = {
  nothing: () => null,
  bare: () => Object.create(null),
  symbol: () => Symbol("s"),
  proxy: () => new Proxy({}, { get: fails, has: fails, getPrototypeOf: fails }),
  unreadable,
  doubled: () => doubled(40),
  own: () => own,
};
export const throws = graph(({ text }) => {
  throw THROWN[text]();
});
export const rejects = graph(async ({ text }) => {
  void Promise.reject(THROWN[text]());
  await pause(20);
  return { log: ["done"] };
});
export const throws_later = graph(async ({ text }) => {
  setTimeout(() => {
    throw THROWN[text]();
  });
  await pause(20);
  return { log: ["done"] };
});

// Values

const recurse = (depth: number): number => recurse(depth + 1) + 1;
export const recurses = graph(() => ({ log: [recurse(0)] }));
const nested = (levels: number): unknown => {
  let value: unknown = 0;
  for (let level = 0; level < levels; level++) {
    value = level % 2 ? [value] : { value };
  }
  return value;
};
class Endless {
  toJSON() {
    return new Endless();
  }
}
class Recursive {
  toJSON(): unknown {
    return this.toJSON();
  }
}
const endlessProxy = () =>
  new Proxy({}, {
    get: (_target, key, receiver) => receiver[key],
    ownKeys: () => ["a"],
    getOwnPropertyDescriptor: () => ({ enumerable: true, configurable: true, value: 1 }),
  });
const VALUES: Record<string, () => unknown> = {
  nested: () => nested(100_000),
  endless: () => new Endless(),
  recursive: () => new Recursive(),
  proxy: endlessProxy,
  getter: () => ({ get broken() { return fails(); } }),
  prototype: () => new Proxy({}, { getPrototypeOf: fails }),
};
export const keeps = graph(({ text }) => ({ kept: VALUES[text]() }));
export const writes = graph(({ text }) => {
  getWriter()?.(VALUES[text]());
  console.log(VALUES[text]());
  return { log: ["written"] };
});

// Output

export const prints_much = graph(() => {
  process.stdout.write(Buffer.alloc(50_000_000, "x"));
  console.log("y".repeat(50_000_000));
  for (let count = 0; count < 200; count++) {
    process.stdout.write("z".repeat(1_000_000));
  }
  return { log: ["printed"] };
});
export const floods = graph(async () => {
  for (let count = 0; count < 600; count++) {
    getWriter()?.("x".repeat(100_000));
    await new Promise((resolve) => setImmediate(resolve));
  }
  return {};
});

// Time

export const blocks = graph(() => {
  const end = Date.now() + 1_000;
  while (Date.now() < end) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
  return { log: ["over"] };
});
export const outlives = graph(async (_state, config) => {
  getWriter()?.("begun");
  const held = Buffer.alloc(5_000_000, 1);
  await new Promise((resolve) => config.signal?.addEventListener("abort", resolve));
  await pause(20); // and does not heed it
  const { configurable } = config;
  const attempts = [() => config.store!.put(["a"], "key", {}), () => works.getState({ configurable: { ...configurable, checkpoint_id: "1" } })];
  const failures = (await Promise.allSettled(attempts.map((attempt) => attempt()))).map(({ reason }: any) => String(reason));
  console.log([...failures, held.length].join("; "));
  return { log: ["late"] };
});

/** Starts threads that go on after the run: one prints and fails, the other never ends. */
export const employs = graph(() => {
  new Worker('setTimeout(() => { console.log("late"); throw new Error("of a thread"); }, 100)', { eval: true });
  new Worker("Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)", { eval: true });
  return { log: ["employed"] };
});

if (process.env.EXITS) {
  setTimeout(() => process.exit(9), 100);
}
