// `RemoteGraph` of LangGraph for JavaScript against a running deployment.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { suite, test } from "node:test";
import { Annotation, Command, MemorySaver, START, StateGraph } from "@langchain/langgraph";
import { RemoteGraph } from "@langchain/langgraph/remote";

const url = process.env.DEPLOYMENT_URL;
const apiKey = process.env.DEPLOYMENT_KEY;
const graph = (graphId) => new RemoteGraph({ graphId, url, apiKey });
const newThread = () => ({ configurable: { thread_id: randomUUID() } });
const all = (stream) => Array.fromAsync(stream);

const State = Annotation.Root({
  text: Annotation(),
  log: Annotation({ reducer: (left, right) => left.concat(right), default: () => [] }),
});

// A local graph with a deployed graph as a node.
const around = (graphId) =>
  new StateGraph(State)
    .addNode("far", graph(graphId))
    .addNode("near", () => ({ log: ["near"] }))
    .addEdge(START, "far")
    .addEdge("far", "near")
    .compile({ checkpointer: new MemorySaver() });

suite("remote", { concurrency: 2, timeout: 60_000 }, () => {
  test("it is invoked with a thread and without", async () => {
    assert.deepEqual(await graph("echo").invoke({ text: "x" }), { text: "x", log: ["x"] });
    const config = newThread();
    await graph("echo").invoke({ text: "a" }, config);
    assert.deepEqual((await graph("echo").invoke({ text: "b" }, config)).log, ["a", "b"]);
  });

  test("a failing graph throws", async () => {
    await assert.rejects(graph("fails").invoke({ text: "x" }), /boom happened/);
  });

  test("it streams each mode", async () => {
    assert.deepEqual(await all(await graph("echo").stream({ text: "x" }, { streamMode: "updates" })), [{ node: { log: ["x"] } }]);
    const several = await all(await graph("writes").stream({ n: 2 }, { streamMode: ["custom", "values"] }));
    assert.deepEqual(several, [
      ["values", { n: 2, log: [] }],
      ["custom", { i: 0 }],
      ["custom", { i: 1 }],
      ["values", { n: 2, log: ["written"] }],
    ]);
    const input = { messages: [{ role: "user", content: "hi" }] };
    const tokens = await all(await graph("speaks").stream(input, { streamMode: "messages" }));
    assert.equal(tokens.map(([message]) => message.content).join(""), "hello big world");
    const inner = await all(await graph("nested").stream({ text: "x" }, { subgraphs: true, streamMode: "updates" }));
    assert.deepEqual(inner.map(([namespace]) => namespace.length > 0), [true, true, false]);
  });

  test("its state is read, changed and forked", async () => {
    const config = newThread();
    await assert.rejects(graph("asks").invoke({ text: "x" }, config), { name: "GraphInterrupt" });
    const state = await graph("asks").getState(config);
    assert.deepEqual([state.next, state.values.log], [["ask"], ["before"]]);
    assert.deepEqual(state.tasks[0].interrupts[0].value, { question: "may I?" });
    const history = await all(graph("asks").getStateHistory(config));
    assert.deepEqual(history.map(({ next }) => next), [["ask"], ["before"], ["__start__"]]);
    const forked = await graph("asks").updateState(history[1].config, { log: ["mine"] }, "before");
    assert.deepEqual((await graph("asks").getState(forked)).values.log, ["mine"]);
    assert.deepEqual((await graph("asks").invoke(new Command({ resume: "yes" }), config)).log, ["mine", "yes", "after"]);
  });

  test("it is drawn", async () => {
    const { nodes } = await graph("nested").getGraphAsync({ xray: true });
    assert.ok("child:before" in nodes && "child:after" in nodes);
  });

  test("it is a node of another graph", async () => {
    assert.deepEqual((await around("nested").invoke({ text: "x" }, newThread())).log, ["before", "after", "near"]);
  });

  test("its interrupt is the outer graph's", async () => {
    const config = newThread();
    const stopped = await around("asks").invoke({ text: "x" }, config);
    assert.deepEqual(stopped.__interrupt__.map(({ value }) => value), [{ question: "may I?" }]);
  });
});
