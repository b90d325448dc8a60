// AG-UI clients against a running deployment: `HttpAgent` of two versions on the native endpoint, and `LangGraphAgent`
// of the adapter on the LangGraph API, alone and inside the CopilotKit runtime.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { suite, test } from "node:test";
import { HttpAgent } from "@ag-ui/client";
import { HttpAgent as OldAgent } from "@ag-ui/client-before-1.0";
import { EventSchema } from "@ag-ui/core/schemas";
import { LangGraphAgent } from "@ag-ui/langgraph";
import { CopilotRuntime, createCopilotEndpoint } from "@copilotkit/runtime/v2";

const url = process.env.DEPLOYMENT_URL;
const headers = { "X-Api-Key": process.env.DEPLOYMENT_KEY };
const COLOUR = {
  name: "set_colour",
  description: "Set the colour of the page",
  parameters: { type: "object", properties: { colour: { type: "string" } }, required: ["colour"] },
};
const user = (content) => ({ id: randomUUID(), role: "user", content });
const native = (Agent) => (graph) => new Agent({ url: `${url}/ag-ui/${graph}`, headers, threadId: randomUUID() });
const adapted = (graph) =>
  new LangGraphAgent({ deploymentUrl: url, graphId: graph, langsmithApiKey: headers["X-Api-Key"], threadId: randomUUID() });

// Run an agent with another message of the user. Returns its events.
async function say(agent, text, parameters = {}) {
  if (text) agent.addMessage(user(text));
  const events = [];
  await agent.runAgent(parameters, {
    onEvent: ({ event }) => {
      events.push(event);
    },
  });
  return events;
}

async function newestRun(agent) {
  const runs = await fetch(`${url}/threads/${agent.threadId}/runs`, { headers });
  return runs.ok ? (await runs.json())[0] : undefined;
}

// The runtime of CopilotKit, called as its pages call it.
const agents = { native: native(OldAgent)("chat"), adapted: adapted("chat") };
const endpoint = createCopilotEndpoint({ runtime: new CopilotRuntime({ agents }), basePath: "/api" });
const runtime = {
  async call(path, body) {
    const response = await endpoint.request(`/api/agent/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
      body: JSON.stringify({ runId: randomUUID(), state: {}, tools: [], context: [], forwardedProps: {}, ...body }),
    });
    assert.equal(response.status, 200);
    const parts = (await response.text()).split("\n\n").filter((part) => part.startsWith("data:"));
    return parts.map((part) => JSON.parse(part.slice(5)));
  },
  run: (name, threadId, content, more = {}) =>
    runtime.call(`${name}/run`, { threadId, messages: content ? [user(content)] : [], ...more }),
  stop: (name, threadId) => endpoint.request(`/api/agent/${name}/stop/${threadId}`, { method: "POST" }),
};

const of = (events, type) => events.filter((event) => event.type === type);
const text = (events) => of(events, "TEXT_MESSAGE_CONTENT").map(({ delta }) => delta).join("");
const end = (events) => events.at(-1);

// What every client of either version sees of the native endpoint.
function common(make) {
  return {
    async text() {
      const agent = make("chat");
      const events = await say(agent, "hello");
      assert.equal(text(events), "Hello from the agent");
      assert.deepEqual(end(events).outcome, { type: "success" });
      const [usage] = end(events).usage;
      assert.deepEqual(usage, { provider: "model", model: "large", inputTokens: 3, outputTokens: 2, totalTokens: 5 });
      assert.deepEqual(agent.messages.map(({ role }) => role), ["user", "assistant"]);
      assert.match(text(await say(agent, "again")), /Hello/);
      assert.equal(agent.messages.length, 4);
    },
    async serverTool() {
      const agent = make("chat");
      const events = await say(agent, "weather Rome");
      assert.deepEqual(agent.messages.map(({ role }) => role), ["user", "assistant", "tool", "assistant"]);
      assert.deepEqual(JSON.parse(agent.messages[1].toolCalls[0].function.arguments), { city: "Rome" });
      assert.equal(agent.messages[2].content, "sunny in Rome");
      assert.equal(of(events, "TOOL_CALL_START").length, 1);
    },
    async browserTool() {
      const agent = make("chat");
      const events = await say(agent, "colour red", { tools: [COLOUR] });
      const [call] = agent.messages.at(-1).toolCalls;
      assert.deepEqual(JSON.parse(call.function.arguments), { colour: "red" });
      agent.addMessage({ id: randomUUID(), role: "tool", toolCallId: call.id, content: "now red" });
      assert.equal(text(await say(agent, null, { tools: [COLOUR] })), "The answer is now red");
      return { events, call };
    },
    async interrupt() {
      const agent = make("chat");
      const events = await say(agent, "buy milk");
      assert.deepEqual(of(events, "CUSTOM").map(({ name }) => name), ["on_interrupt"]);
      const { outcome } = end(events);
      assert.equal(outcome.type, "interrupt");
      const [interrupt] = outcome.interrupts;
      assert.equal(interrupt.message, "Buy milk?");
      assert.deepEqual(interrupt.responseSchema, { type: "boolean" });
      return { agent, interrupt };
    },
    async failing() {
      const agent = make("chat");
      const events = [];
      agent.addMessage(user("fail"));
      await agent.runAgent({}, { onEvent: ({ event }) => void events.push(event) }).catch(() => {});
      assert.equal(end(events).type, "RUN_ERROR");
      assert.equal(end(events).message, "ValueError: boom");
      assert.equal(end(events).code, "ValueError");
    },
    async regenerate() {
      const agent = make("chat");
      await say(agent, "hello");
      await say(agent, "note first");
      const [kept] = agent.messages;
      const before = agent.messages[1].id;
      agent.setMessages([kept]);
      assert.equal(text(await say(agent, null)), "Hello from the agent");
      assert.equal(agent.messages.length, 2);
      assert.notEqual(agent.messages[1].id, before);
      agent.setMessages([{ ...kept, content: "note another" }]);
      await say(agent, null);
      assert.deepEqual(agent.messages.map(({ content }) => content), ["note another", "Noted."]);
    },
    async state() {
      const agent = make("chat");
      const events = await say(agent, "note much milk");
      assert.deepEqual(agent.state, { topic: "much milk", notes: ["much", "milk"] });
      assert.deepEqual(of(events, "CUSTOM").map(({ name, value }) => [name, value]), [["noted", 2]]);
      assert.ok(of(events, "STATE_SNAPSHOT").length + of(events, "STATE_DELTA").length >= 2);
      agent.setState({ ...agent.state, topic: "mine" });
      await say(agent, "hello");
      assert.equal(agent.state.topic, "mine");
    },
    async reasoning() {
      const agent = make("chat");
      const events = await say(agent, "think");
      assert.equal(of(events, "REASONING_MESSAGE_CONTENT").map(({ delta }) => delta).join(""), "Hmm, yes.");
      assert.equal(of(events, "REASONING_ENCRYPTED_VALUE")[0].encryptedValue, "c2lnbmVk");
      assert.equal(text(events), "Thought.");
      assert.deepEqual(agent.messages.map(({ role }) => role), ["user", "reasoning", "assistant"]);
    },
    async cancelledByOthers() {
      const agent = make("chat");
      agent.addMessage(user("wait"));
      const events = [];
      let cancelled;
      const cancel = async () => {
        const { thread_id, run_id } = await newestRun(agent);
        await fetch(`${url}/threads/${thread_id}/runs/${run_id}/cancel`, { method: "POST", headers });
      };
      await agent
        .runAgent({}, {
          onEvent: ({ event }) => {
            events.push(event);
            if (event.type === "TEXT_MESSAGE_CONTENT") cancelled ??= cancel();
          },
        })
        .catch(() => {});
      await cancelled;
      return events;
    },
    async plain() {
      assert.equal(text(await say(make("chat"), "plain")), "A plain object.");
    },
    async context() {
      const context = [{ description: "The page", value: "checkout" }];
      assert.equal(text(await say(make("chat"), "context", { context })), "checkout");
    },
    async stopped() {
      const agent = make("chat");
      agent.addMessage(user("wait"));
      await agent
        .runAgent({}, {
          onEvent: ({ event }) => {
            if (event.type === "TEXT_MESSAGE_CONTENT") agent.abortRun();
          },
        })
        .catch(() => {});
      for (let left = 100; ; left--) {
        const run = await newestRun(agent);
        if (run.status === "interrupted") break;
        assert.ok(left > 0, `the run is ${run.status}`);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    },
    async noMessages() {
      const agent = make("trips");
      agent.setState({ city: "Rome" });
      await say(agent, "anything");
      assert.deepEqual(agent.state, { city: "Rome", plan: "a day in Rome" });
      assert.equal(agent.messages.length, 1);
    },
  };
}

const checked = native(
  class extends HttpAgent {
    // Each event is validated as it was sent, before the client changes it.
    async runAgent(parameters, subscriber) {
      const validate = ({ event }) => {
        EventSchema.parse(event);
        assert.ok(!Object.values(event).includes(null), `a null in ${JSON.stringify(event)}`);
        return subscriber.onEvent({ event });
      };
      return super.runAgent(parameters, { ...subscriber, onEvent: validate });
    }
  },
);
const now = common(checked);
const before = common(native(OldAgent));

suite("ag_ui", { concurrency: 4, timeout: 60_000 }, () => {
  test("text streams, and a thread goes on", now.text);
  test("text streams, and a thread goes on, before 1.0", before.text);
  test("a tool of the graph is called and answered", now.serverTool);
  test("a tool of the graph is called and answered, before 1.0", before.serverTool);
  test("a state travels in both directions", now.state);
  test("a state travels in both directions, before 1.0", before.state);
  test("reasoning has events of its own", now.reasoning);
  test("reasoning has events of its own, before 1.0", before.reasoning);
  test("a failing graph is an error", now.failing);
  test("a failing graph is an error, before 1.0", before.failing);
  test("an answer is generated again, also to a changed message", now.regenerate);
  test("an answer is generated again, before 1.0", before.regenerate);
  test("messages that never streamed are shown", now.plain);
  test("a graph gets the context of the page", now.context);
  test("a client that stops reading cancels the run", now.stopped);
  test("a client that stops reading cancels the run, before 1.0", before.stopped);
  test("a graph without messages has a state", now.noMessages);

  test("a tool of the page is left to the page", async () => {
    const { events, call } = await now.browserTool();
    assert.deepEqual(end(events).outcome, { type: "success", pendingToolCallIds: [call.id] });
  });
  test("a tool of the page is left to the page, before 1.0", async () => {
    const { events } = await before.browserTool();
    assert.deepEqual(end(events).outcome, { type: "success" });
  });

  test("an interrupt waits until it is answered", async () => {
    const { agent, interrupt } = await now.interrupt();
    const { id } = interrupt;
    assert.equal(agent.pendingInterrupts.length, 1);
    const answered = await say(agent, null, { resume: [{ interruptId: id, status: "resolved", payload: true }] });
    assert.equal(text(answered), "Answer for milk: True");
    assert.equal(agent.pendingInterrupts.length, 0);
  });
  test("an abandoned interrupt resumes the graph", async () => {
    const { agent, interrupt } = await now.interrupt();
    const cancelled = await say(agent, null, { resume: [{ interruptId: interrupt.id, status: "cancelled" }] });
    assert.equal(text(cancelled), "Answer for milk: {'__agui_cancelled__': True}");
  });
  test("an interrupt is answered by the older property, before 1.0", async () => {
    const { agent } = await before.interrupt();
    agent.pendingInterrupts = []; // as the adapter does: the client would otherwise insist on `resume`
    const answered = await say(agent, null, { forwardedProps: { command: { resume: "yes" } } });
    assert.equal(text(answered), "Answer for milk: yes");
  });

  test("a cancelled run says so", async () => {
    assert.deepEqual(end(await now.cancelledByOthers()).outcome, { type: "cancelled" });
  });
  test("a cancelled run is an error, before 1.0", async () => {
    const last = end(await before.cancelledByOthers());
    assert.deepEqual([last.type, last.code], ["RUN_ERROR", "cancelled"]);
  });

  test("a subgraph is a subagent", async () => {
    const agent = checked("team");
    const events = await say(agent, "weather Rome");
    const [started] = of(events, "SUBAGENT_STARTED");
    assert.equal(started.name, "writer");
    const inner = events.filter((event) => event.subagentRunId === started.subagentRunId);
    assert.ok(of(inner, "TOOL_CALL_START").length === 1 && of(inner, "TEXT_MESSAGE_START").length === 2);
    assert.deepEqual(of(inner, "SUBAGENT_FINISHED").map(({ outcome }) => outcome), [{ type: "success" }]);
    const asked = await say(checked("team"), "buy milk");
    const [{ outcome }] = of(asked, "SUBAGENT_FINISHED");
    assert.deepEqual(outcome, { type: "suspended", interruptIds: [end(asked).outcome.interrupts[0].id] });
    const flat = await say(checked("team"), "hello", { forwardedProps: { streamSubgraphs: false } });
    assert.equal(of(flat, "SUBAGENT_STARTED").length, 0);
    assert.equal(text(flat), "Hello from the agent");
  });
  test("a subgraph is no subagent before 1.0", async () => {
    const events = await say(native(OldAgent)("team"), "hello");
    assert.equal(of(events, "SUBAGENT_STARTED").length, 0);
    assert.equal(text(events), "Hello from the agent");
  });

  test("the adapter runs, calls tools and resumes on the LangGraph API", async () => {
      const agent = adapted("chat");
      assert.equal(text(await say(agent, "hello")), "Hello from the agent");
      await say(agent, "weather Rome");
      assert.ok(agent.messages.some(({ content }) => content === "The answer is sunny in Rome"));
      const asking = adapted("chat");
      assert.ok(of(await say(asking, "buy milk"), "CUSTOM").some((event) => event.name === "on_interrupt"));
      const answered = await say(asking, null, { forwardedProps: { command: { resume: "yes" } } });
      assert.equal(text(answered), "Answer for milk: yes");
  });

  test("the runtime of CopilotKit runs both kinds of agents", async () => {
    for (const name of ["native", "adapted"]) {
      const events = await runtime.run(name, randomUUID(), "weather Rome");
      assert.match(text(events), /sunny in Rome/, name);
      assert.equal(end(events).type, "RUN_FINISHED", name);
    }
  });

  test("the runtime of CopilotKit shows a thread again, and its questions are answered", async () => {
    for (const name of ["native", "adapted"]) {
      const threadId = randomUUID();
      const asked = await runtime.run(name, threadId, "buy milk");
      assert.ok(of(asked, "CUSTOM").some((event) => event.name === "on_interrupt"), name);
      const messages = of(asked, "MESSAGES_SNAPSHOT").at(-1).messages;
      const resume = of(asked, "RUN_FINISHED")[0].outcome?.interrupts?.map(({ id }) => ({ interruptId: id, status: "resolved", payload: "yes" }));
      const more = resume ? { resume } : { forwardedProps: { command: { resume: "yes" } } };
      assert.equal(text(await runtime.run(name, threadId, null, { messages, ...more })), "Answer for milk: yes", name);
      assert.match(text(await runtime.call(`${name}/connect`, { threadId, messages: [] })), /Answer for milk: yes/, name);
    }
  });

  test("the runtime of CopilotKit stops a run", async () => {
    for (const name of ["native", "adapted"]) {
      const threadId = randomUUID();
      const running = runtime.run(name, threadId, "wait");
      while ((await newestRun({ threadId }))?.status !== "running") await new Promise((resolve) => setTimeout(resolve, 50));
      await runtime.stop(name, threadId);
      await running;
      while ((await newestRun({ threadId })).status === "running") await new Promise((resolve) => setTimeout(resolve, 50));
      assert.equal((await newestRun({ threadId })).status, "interrupted", name);
    }
  });
});
