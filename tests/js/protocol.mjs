// `threads.stream` over server-sent events or a WebSocket: runs, questions, streams of several kinds.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { suite, test } from "node:test";
import { Client } from "@langchain/langgraph-sdk";

const apiUrl = process.env.DEPLOYMENT_URL;
const apiKey = process.env.DEPLOYMENT_KEY;
const transport = process.env.TRANSPORT;
// The client takes no key for sockets, since browsers could not send it: whoever can makes them.
const clientOf = (apiUrl) => new Client({ apiUrl, apiKey: transport === "sse" ? apiKey : null });
const client = clientOf(apiUrl);
const room = clientOf(process.env.CHATROOM_URL); // with conversations
const webSocketFactory = (url) => new WebSocket(url, { headers: { "x-api-key": apiKey } });
const opened = (assistantId, threadId, from = client) =>
  from.threads.stream(threadId ?? randomUUID(), { assistantId, transport, webSocketFactory });
const states = new Client({ apiUrl: process.env.CHATROOM_URL, apiKey });

const said = (content) => ({ messages: [{ type: "human", content }] });
const texts = ({ messages }) => messages.map((message) => message.content);

// What a thread comes to when a run completes. A subscription ends at each interruption, also of a run that has just asked.
async function ended(thread) {
  while (true) {
    for await (const { params } of await thread.subscribe({ channels: ["lifecycle"] })) {
      if (params.namespace.length > 0 || params.data.event !== "completed") continue;
      return (await states.threads.getState(thread.threadId)).values;
    }
  }
}

// Answers to what is asked now.
async function answers(thread, count) {
  while (thread.interrupts.length < count) {
    for await (const _ of await thread.subscribe({ channels: ["input", "lifecycle"] })) {
      if (thread.interrupts.length === count) break;
    }
  }
  assert.equal(thread.interrupts.length, count);
  return thread.interrupts.map(({ interruptId: interrupt_id, namespace, payload }) => ({
    interrupt_id,
    namespace,
    response: `yes to ${payload.question}`,
  }));
}

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

  test("two questions are answered at once", async () => {
    const thread = opened("asks_twice", null, room);
    await thread.run.start({ input: said("hi") });
    await thread.input.respond({ responses: await answers(thread, 2) });
    assert.deepEqual(texts(await ended(thread)), ["hi", "first: yes to first?", "second: yes to second?"]);
    assert.equal((await states.runs.list(thread.threadId)).length, 2);
    await thread.close();
  });

  test("two questions are answered one after the other", async () => {
    const thread = opened("asks_twice", null, room);
    await thread.run.start({ input: said("hi") });
    const [, second] = await answers(thread, 2);
    await thread.input.respond(second);
    const [first] = await answers(thread, 1);
    assert.notEqual(first.interrupt_id, second.interrupt_id);
    await thread.input.respond(first);
    assert.deepEqual(texts(await ended(thread)), ["hi", "first: yes to first?", "second: yes to second?"]);
    await thread.close();
  });

  test("tool calls come with what became of them", async () => {
    const thread = opened("helps", null, room);
    const { toolCalls } = thread; // each is told twice: when it starts and when it ends
    await thread.run.start({ input: said("find Oslo nothing") });
    const calls = new Map();
    for await (const call of toolCalls) calls.set(call.args.about, call);
    assert.deepEqual([...calls.keys()].sort(), ["Oslo", "nothing"]);
    assert.equal(calls.get("Oslo").name, "find");
    assert.equal(await calls.get("Oslo").output, "Oslo is known");
    await assert.rejects(calls.get("nothing").output, /nobody knows/);
    await thread.close();
  });

  test("the channel of tools tells each step of a call", async () => {
    const thread = opened("helps", null, room);
    const tools = await thread.subscribe({ channels: ["tools"] });
    await thread.run.start({ input: said("find Oslo") });
    const steps = [];
    for await (const { params } of tools) {
      steps.push(params.data);
      if (params.data.event === "tool-finished") break;
    }
    assert.equal(new Set(steps.map((step) => step.tool_call_id)).size, 1);
    assert.deepEqual(
      steps.map(({ event, tool_name, input, delta }) => tool_name ?? delta ?? event),
      ["find", "looking ", "for ", "Oslo", "tool-finished"],
    );
    assert.deepEqual(steps[0].input, { about: "Oslo" });
    await thread.close();
  });

  test("who works for the agent is found with what is said there", async () => {
    const thread = opened("helps", null, room);
    const { subagents } = thread;
    await thread.run.start({ input: said("task hello") });
    const found = [];
    for await (const agent of subagents) found.push([agent.name, await agent.taskInput, (await agent.output).content]);
    assert.deepEqual(found, [["listener", "hello", "heard: hello."]]);
    await thread.close();
  });

  test("a run goes on from an earlier checkpoint", async () => {
    const threadId = randomUUID();
    for (const text of ["one", "two"]) {
      const thread = opened("chat", threadId, room);
      await thread.run.start({ input: said(text) });
      await thread.output;
      await thread.close();
    }
    const history = await states.threads.getHistory(threadId);
    const fork = history.find(({ values, next }) => values.messages.length === 2 && next.length === 0);
    const thread = opened("chat", threadId, room);
    await thread.run.start({ input: said("other"), forkFrom: fork.checkpoint.checkpoint_id });
    const expected = ["one", "heard: one.", "other", "heard: other."];
    assert.deepEqual(texts(await thread.output), expected);
    assert.deepEqual(texts((await states.threads.getState(threadId)).values), expected);
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
