/** Graphs of checkpoints: random values of every kind, which are compared with what was restored, and changes of a list. */

import { deepStrictEqual } from "node:assert";

import { Document } from "@langchain/core/documents";
import { AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { Annotation, DeltaValue, START, Send, StateGraph, StateSchema } from "@langchain/langgraph";
import { z } from "zod";

const KEYS = ["a", "b", "~", "v", "of", "lc", "kwargs", "__proto__", "constructor", "toJSON", "lg_name", ""];
const TEXTS = ["", "text", "~", "\0", "\ud800", "\u2028", "undefined", "[Circular]", "x".repeat(700), "\u{1f600}"];
const NUMBERS = [0, -0, 1, -1.5, 2 ** 53, 5e-324, NaN, Infinity, -Infinity];

/** Return a function that returns the same numbers from 0 to below `end` for the same seed. */
function generator(seed: number) {
  let state = seed + 1;
  return (end: number) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * end);
  };
}

function randomValue(pick: (end: number) => number, depth: number): unknown {
  const inner = () => randomValue(pick, depth - 1);
  const list = () => Array.from({ length: pick(4) }, inner);
  const object = () => {
    const result = {};
    for (let left = pick(4); left > 0; left--) {
      const options = { value: inner(), enumerable: true, writable: true, configurable: true };
      Object.defineProperty(result, KEYS[pick(KEYS.length)]!, options);
    }
    return result;
  };
  const fields = () => ({ a: inner(), lc: inner(), constructor: inner() }); // LangChain assigns `__proto__`
  const leaves = [
    () => TEXTS[pick(TEXTS.length)],
    () => NUMBERS[pick(NUMBERS.length)],
    () => null,
    () => undefined,
    () => pick(2) === 0,
    () => BigInt(pick(1e9)) ** BigInt(pick(9)) * (pick(2) ? 1n : -1n),
    () => new Date(pick(2) ? pick(2e12) : NaN),
    () => /a.b[/]+/giu,
    () => Buffer.from(TEXTS[pick(TEXTS.length)]!),
    () => new Uint8Array([1, 2, 3, 4]).subarray(1, 3),
    () => new Float64Array([NaN, -0, 1.5]),
    () => new BigInt64Array([-1n]),
    () => new Uint8Array([7]).buffer,
    () => new RangeError(TEXTS[pick(4)]),
  ];
  const nodes = [
    list,
    list,
    object,
    object,
    () => new Map(list().map((item) => [inner(), item])),
    () => new Set(list()),
    () => new Send("one", { a: randomValue(pick, 0) }),
    () => new Document({ pageContent: "page", metadata: fields(), id: "d" }),
    () => new HumanMessage({ content: TEXTS[pick(4)]!, id: "h", additional_kwargs: fields() }),
    () => new SystemMessage("system"),
    () => new AIMessage({
      content: [{ type: "text", text: TEXTS[pick(4)]! }],
      tool_calls: [{ name: "tool", args: fields(), id: "c", type: "tool_call" }],
      response_metadata: fields(),
    }),
    () => new ToolMessage({ content: "", tool_call_id: "c", artifact: inner() }),
    () => new RemoveMessage({ id: "h" }),
  ];
  const kinds = depth > 0 ? nodes : leaves;
  return kinds[pick(kinds.length)]!();
}

function valuesOf(seed: number) {
  const pick = generator(seed);
  return Array.from({ length: 40 }, () => randomValue(pick, pick(5)));
}

/** Return errors, which are restored without their class and stack, as their names and texts. */
function comparable(value: any): any {
  if (value instanceof Error) {
    return `${value.name}: ${value.message}`;
  }
  if (Array.isArray(value)) {
    return value.map(comparable);
  }
  if (value instanceof Map) {
    return new Map([...value].map(comparable));
  }
  if (value instanceof Set) {
    return new Set([...value].map(comparable));
  }
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value) || value instanceof ArrayBuffer) {
    return value;
  }
  if (value instanceof Date || value instanceof RegExp) {
    return value;
  }
  const shown = Object.entries(value).filter(([key, item]) => key !== "lc_kwargs" && typeof item !== "function");
  return [Object.getPrototypeOf(value).constructor, ...shown.map(([key, item]) => [key, comparable(item)])];
}

const State = Annotation.Root({
  seed: Annotation<number>,
  kept: Annotation<unknown[]>,
  differing: Annotation<unknown[]>,
});

export const random = new StateGraph(State)
  .addNode("keep", ({ seed }) => ({ kept: valuesOf(seed) }))
  .addNode("compare", ({ seed, kept }) => {
    const differing = valuesOf(seed).flatMap((value, position) => {
      try {
        deepStrictEqual(comparable(kept[position]), comparable(value));
        return [];
      } catch (error) {
        return [`${position}: ${(error as Error).message}`];
      }
    });
    return { differing };
  })
  .addEdge(START, "keep")
  .addEdge("keep", "compare")
  .compile({ interruptBefore: ["compare"] });

// A list that checkpoints store as its changes, and every fourth time as a whole

const Changes = new StateSchema({
  left: z.number(),
  list: new DeltaValue(z.array(z.any()).default(() => []), {
    inputSchema: z.array(z.any()),
    reducer: (list: unknown[], writes: unknown[][]) => list.concat(...writes),
    snapshotFrequency: 4,
  }),
});

export const changes = new StateGraph(Changes)
  .addNode("add", ({ left, list }) => ({ left: left - 1, list: [{ length: list.length, at: new Date(0) }] }))
  .addEdge(START, "add")
  .addConditionalEdges("add", ({ left }) => (left > 0 ? "add" : "__end__"))
  .compile();
