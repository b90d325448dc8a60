// `threads.stream` over server-sent events or a WebSocket: runs, questions, streams of several kinds.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { suite, test } from "node:test";
import { Client } from "@langchain/langgraph-sdk";

const apiUrl = process.env.DEPLOYMENT_URL;
const apiKey = process.env.DEPLOYMENT_KEY;
const transport = process.env.TRANSPORT;
// The client takes no key for sockets, since browsers could not send it: whoever can makes them.
const client = new Client({ apiUrl, apiKey: transport === "sse" ? apiKey : null });
const webSocketFactory = (url) => new WebSocket(url, { headers: { "x-api-key": apiKey } });
const opened = (assistantId, threadId) =>
  client.threads.stream(threadId ?? randomUUID(), { assistantId, transport, webSocketFactory });

suite("protocol", { concurrency: 2, timeout: 60_000 }, () => {
  test("output is what the run came to", async () => {
    const thread = opened("echo");
    const { run_id } = await thread.run.start({ input: { text: "hi" } });
    assert.ok(run_id);
    assert.deepEqual((await thread.output).log, ["hi"]);
    await thread.close();
  });

  test("each run of a thread has its own output, with a new object each time", async () => {
    const threadId = randomUUID();
    for (const expected of [["0"], ["0", "1"], ["0", "1", "2"]]) {
      const thread = opened("echo", threadId);
      await thread.run.start({ input: { text: expected.at(-1) } });
      assert.deepEqual((await thread.output).log, expected);
      await thread.close();
    }
  });

  test("values come as the graph makes them", async () => {
    const thread = opened("counts");
    await thread.run.start({ input: { n: 3, seconds: 0.05 } });
    const seen = [];
    for await (const values of thread.values) seen.push(values.log?.length ?? 0);
    assert.equal(seen.at(-1), 3);
    assert.ok(seen.length >= 3);
    await thread.close();
  });

  test("messages come token by token", async () => {
    const thread = opened("speaks");
    const { messages } = thread; // asked for before the run: it may be over at once
    await thread.run.start({ input: { messages: [{ type: "human", content: "hi", id: "mine" }] } });
    const texts = [];
    for await (const message of messages) {
      const parts = [];
      for await (const part of message.text) parts.push(part);
      texts.push(parts);
    }
    assert.equal(texts.length, 1);
    assert.ok(texts[0].length > 2);
    assert.equal((await thread.output).messages[1].content, "hello big world");
    await thread.close();
  });

  test("a question is answered", async () => {
    const thread = opened("asks");
    await thread.run.start({ input: { text: "t" } });
    for await (const _ of thread.values);
    const [asked] = thread.interrupts;
    assert.deepEqual(asked.payload, { question: "may I?" });
    await thread.input.respond({ interrupt_id: asked.interruptId, namespace: asked.namespace, response: "yes" });
    let last;
    for await (const event of await thread.subscribe({ channels: ["values"] })) {
      last = event.params.data;
      if (last.log.length === 3) break;
    }
    assert.deepEqual(last.log, ["before", "yes", "after"]);
    await thread.close();
  });

  test("a failed run says what went wrong", async () => {
    const thread = opened("fails");
    await thread.run.start({ input: {} });
    const seen = [];
    for await (const event of await thread.subscribe({ channels: ["lifecycle"] })) {
      seen.push(event.params.data);
      if (seen.at(-1).event === "failed") break;
    }
    assert.equal(seen[0].event, "running");
    assert.deepEqual([seen.at(-1).event, seen.at(-1).error], ["failed", "boom happened"]);
    await thread.close();
  });

  test("subgraphs are found", async () => {
    const thread = opened("nested");
    const { subgraphs } = thread;
    await thread.run.start({ input: { text: "t" } });
    const names = [];
    for await (const subgraph of subgraphs) names.push(subgraph.name);
    assert.deepEqual(names, ["child"]);
    await thread.close();
  });

  test("what is refused has its code", async () => {
    const thread = opened("nope");
    await assert.rejects(thread.run.start({ input: {} }), /422: Invalid assistant/);
    await assert.rejects(thread.state.get({ namespace: [] }), /not supported/);
    await thread.close();
  });

  test("the tree of a run is told", async () => {
    const thread = opened("nested");
    await thread.run.start({ input: { text: "t" } });
    await thread.output;
    const { tree } = await thread.agent.getTree();
    assert.deepEqual([tree.status, tree.graph_name, tree.children.length], ["completed", "nested", 1]);
    await thread.close();
  });
});
