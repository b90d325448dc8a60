// Every method of the JavaScript client against a running deployment: a row calls one and looks at what
// callers read of its answer. Runs beside the installed client, both lines of it; `tests/e2e/test_clients_js.py` starts it.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { suite, test } from "node:test";
import { Client } from "@langchain/langgraph-sdk";

const { version } = JSON.parse(readFileSync("node_modules/@langchain/langgraph-sdk/package.json"));
const isOlder = version === "2.0.0"; // published earlier than 1.15.0, whatever its number says
const apiUrl = process.env.DEPLOYMENT_URL;
const apiKey = process.env.DEPLOYMENT_KEY;
const client = new Client({ apiUrl, apiKey });

const ECHO = "046b5dc7-2108-582c-9c6c-31d556d138f0";
const NEVER = "0 0 1 1 *";
const rows = new Map();
const row = (name, run) => rows.set(name, run);
const newer = (name, run) => !isOlder && row(name, run); // what the older line lacks

const newThread = async (payload) => (await client.threads.create(payload)).thread_id;
const textRun = (thread, text, more) => client.runs.wait(thread, "echo", { input: { text }, ...more });
const running = (thread) => client.runs.create(thread, "sleeps", { input: { text: "x" } });
const all = async (stream) => {
  const parts = [];
  for await (const part of stream) if (part.event) parts.push(part);
  return parts;
};
const names = (parts) => parts.map((part) => part.event);
const refused = (status) => (error) => {
  assert.equal(error.status, status);
  return true;
};

row("assistants.get", async () => {
  const found = await client.assistants.get(ECHO);
  assert.deepEqual([found.assistant_id, found.graph_id, found.version], [ECHO, "echo", 1]);
  await assert.rejects(client.assistants.get(randomUUID()), refused(404));
});

row("assistants.getGraph", async () => {
  const graph = await client.assistants.getGraph(ECHO, { xray: true });
  assert.deepEqual(graph.nodes.map((node) => node.id).sort(), ["__end__", "__start__", "node"]);
  assert.equal(graph.edges[0].source, "__start__");
});

row("assistants.getSchemas", async () => {
  const schemas = await client.assistants.getSchemas(ECHO);
  assert.equal(schemas.graph_id, "echo");
  assert.ok(schemas.input_schema && schemas.output_schema && schemas.state_schema);
});

row("assistants.getSubgraphs", async () => {
  const [nested] = await client.assistants.search({ graphId: "nested" });
  const found = await client.assistants.getSubgraphs(nested.assistant_id, { recurse: true });
  const one = await client.assistants.getSubgraphs(nested.assistant_id, { namespace: "child" });
  assert.deepEqual([Object.keys(found), Object.keys(one)], [["child"], ["child"]]);
});

row("assistants.create", async () => {
  const assistantId = randomUUID();
  const asked = { graphId: "greets", assistantId, context: { word: "hi" }, metadata: { a: 1 }, name: "n", description: "d" };
  const made = await client.assistants.create(asked);
  assert.deepEqual([made.assistant_id, made.context, made.metadata], [assistantId, { word: "hi" }, { a: 1 }]);
  assert.deepEqual([made.name, made.description, made.version], ["n", "d", 1]);
  assert.deepEqual(await client.assistants.create({ ...asked, ifExists: "do_nothing" }), made);
  await assert.rejects(client.assistants.create(asked), refused(409));
});

row("assistants.update", async () => {
  const made = await client.assistants.create({ graphId: "greets", context: { word: "a", loud: true } });
  const changed = await client.assistants.update(made.assistant_id, { context: { word: "b" }, name: "new" });
  assert.deepEqual([changed.version, changed.context, changed.name], [2, { word: "b" }, "new"]);
});

row("assistants.delete", async () => {
  const made = await client.assistants.create({ graphId: "echo" });
  await client.assistants.delete(made.assistant_id);
  await assert.rejects(client.assistants.get(made.assistant_id), refused(404));
});

row("assistants.search", async () => {
  const metadata = { m: randomUUID() };
  const ids = [];
  for (let i = 0; i < 3; i++) ids.push((await client.assistants.create({ graphId: "echo", metadata })).assistant_id);
  const order = { sortBy: "created_at", sortOrder: "asc" };
  const found = await client.assistants.search({ metadata, graphId: "echo", limit: 2, ...order });
  assert.deepEqual(found.map((item) => item.assistant_id), ids.slice(0, 2));
  const page = await client.assistants.search({ metadata, limit: 2, select: ["assistant_id"], includePagination: true });
  assert.deepEqual([page.next, page.assistants.map(Object.keys)], ["2", [["assistant_id"], ["assistant_id"]]]);
  const last = await client.assistants.search({ metadata, limit: 2, offset: 2, includePagination: true });
  assert.deepEqual([last.next, last.assistants.length], [null, 1]);
});

row("assistants.count", async () => {
  const metadata = { m: randomUUID() };
  await client.assistants.create({ graphId: "echo", metadata });
  assert.equal(await client.assistants.count({ metadata, graphId: "echo" }), 1);
});

row("assistants.getVersions", async () => {
  const made = await client.assistants.create({ graphId: "greets", metadata: { m: 1 } });
  await client.assistants.update(made.assistant_id, { metadata: { m: 2 } });
  const versions = await client.assistants.getVersions(made.assistant_id);
  assert.deepEqual(versions.map((item) => item.version), [2, 1]);
  const one = await client.assistants.getVersions(made.assistant_id, { metadata: { m: 1 } });
  assert.deepEqual(one.map((item) => item.version), [1]);
});

row("assistants.setLatest", async () => {
  const made = await client.assistants.create({ graphId: "greets", context: { word: "one" } });
  await client.assistants.update(made.assistant_id, { context: { word: "two" } });
  const latest = await client.assistants.setLatest(made.assistant_id, 1);
  assert.deepEqual([latest.version, latest.context], [1, { word: "one" }]);
  const said = await client.runs.wait(null, made.assistant_id, { input: { text: "" } });
  assert.deepEqual(said.log, ["one"]);
});

row("threads.get", async () => {
  const thread = await newThread({ ttl: 5 });
  const found = await client.threads.get(thread, { include: ["ttl"] });
  assert.deepEqual([found.thread_id, found.status, found.values], [thread, "idle", null]);
  if (!isOlder) assert.deepEqual([found.ttl.ttl_minutes, found.ttl.strategy], [5, "delete"]);
});

row("threads.create", async () => {
  const threadId = randomUUID();
  const supersteps = [{ updates: [{ values: { text: "a", log: ["b"] }, asNode: "__start__" }] }];
  const made = await client.threads.create({ threadId, graphId: "echo", metadata: { a: 1 }, supersteps });
  assert.deepEqual([made.thread_id, made.metadata], [threadId, { a: 1, graph_id: "echo" }]);
  assert.deepEqual(made.values, { text: "a", log: ["b"] });
  await assert.rejects(client.threads.create({ threadId, ifExists: "raise" }), refused(409));
  const same = await client.threads.create({ threadId, ifExists: "do_nothing" });
  assert.deepEqual(same.metadata, made.metadata);
  assert.deepEqual((await client.threads.create()).metadata, {});
});

row("threads.update", async () => {
  const thread = await newThread({ metadata: { a: 1 } });
  const changed = await client.threads.update(thread, { metadata: { b: 2 } });
  assert.deepEqual(changed.metadata, { a: 1, b: 2 });
  if (isOlder) return;
  assert.equal(await client.threads.update(thread, { metadata: { c: 3 }, returnMinimal: true }), undefined);
});

row("threads.copy", async () => {
  const thread = await newThread();
  await textRun(thread, "x");
  const copy = await client.threads.copy(thread);
  assert.notEqual(copy.thread_id, thread);
  assert.deepEqual((await client.threads.getState(copy.thread_id)).values, { text: "x", log: ["x"] });
});

row("threads.delete", async () => {
  const thread = await newThread();
  await client.threads.delete(thread);
  await assert.rejects(client.threads.get(thread), refused(404));
});

newer("threads.prune", async () => {
  const thread = await newThread();
  await textRun(thread, "x");
  assert.deepEqual(await client.threads.prune([thread], { strategy: "keep_latest" }), { pruned_count: 1 });
  assert.equal((await client.threads.getHistory(thread)).length, 1);
  assert.deepEqual(await client.threads.prune([thread, randomUUID()]), { pruned_count: 1 });
});

row("threads.search", async () => {
  const metadata = { m: randomUUID() };
  const ids = [await newThread({ metadata }), await newThread({ metadata })];
  const order = { sortBy: "created_at", sortOrder: "asc" };
  const found = await client.threads.search({ metadata, limit: 5, ...order });
  assert.deepEqual(found.map((thread) => thread.thread_id), ids);
  await textRun(ids[1], metadata.m);
  const [one] = await client.threads.search({ metadata, ids, status: "idle", values: { text: metadata.m }, select: ["values"], extract: { last: "values.log[-1]" } });
  assert.deepEqual(one.values, { text: metadata.m, log: [metadata.m] });
  if (!isOlder) assert.deepEqual(one.extracted, { last: metadata.m });
});

row("threads.count", async () => {
  const metadata = { m: randomUUID() };
  await newThread({ metadata });
  assert.equal(await client.threads.count({ metadata, status: "idle" }), 1);
  assert.equal(await client.threads.count({ metadata, values: { text: "x" } }), 0);
});

row("threads.getState", async () => {
  const thread = await newThread();
  assert.equal((await client.threads.getState(thread)).checkpoint, null);
  await client.runs.wait(thread, "nested", { input: { text: "x" }, interruptBefore: ["child"] });
  const states = await Promise.all([1, 2].map(() => client.threads.getState(thread, null, { subgraphs: true })));
  assert.deepEqual([states[0].next, states[1].next], [["child"], ["child"]]);
  const { checkpoint } = states[0];
  assert.deepEqual((await client.threads.getState(thread, checkpoint)).checkpoint, checkpoint);
  assert.deepEqual((await client.threads.getState(thread, checkpoint.checkpoint_id)).checkpoint, checkpoint);
  if (isOlder) return;
  const part = await client.threads.getState(thread, null, { select: ["next", "values.text"] });
  assert.deepEqual(part, { next: ["child"], values: { text: "x" } });
});

row("threads.updateState", async () => {
  const thread = await newThread();
  await client.runs.wait(thread, "asks", { input: { text: "x" } });
  const first = (await client.threads.getHistory(thread)).at(-1);
  const made = await client.threads.updateState(thread, { values: { log: ["forked"] }, asNode: "before" });
  const state = await client.threads.getState(thread);
  assert.deepEqual([state.checkpoint, state.values.log], [made.checkpoint, ["before", "forked"]]);
  await client.threads.updateState(thread, { values: { log: ["other"] }, asNode: "before", checkpoint: first.checkpoint });
  assert.deepEqual((await client.threads.getState(thread)).values.log, ["other"]);
});

row("threads.patchState", async () => {
  const thread = await newThread({ metadata: { a: 1 } });
  await client.threads.patchState(thread, { b: 2 });
  await client.threads.patchState({ configurable: { thread_id: thread } }, { c: 3 });
  assert.deepEqual((await client.threads.get(thread)).metadata, { a: 1, b: 2, c: 3 });
});

row("threads.getHistory", async () => {
  const thread = await newThread();
  await client.runs.wait(thread, "counts", { input: { n: 3, seconds: 0 } });
  const history = await client.threads.getHistory(thread);
  assert.deepEqual(history.map((state) => state.metadata.step), [3, 2, 1, 0, -1]);
  assert.equal((await client.threads.getHistory(thread, { limit: 2 })).length, 2);
  const { checkpoint_id } = history[1].checkpoint;
  assert.deepEqual(await client.threads.getHistory(thread, { before: { configurable: { checkpoint_id } } }), history.slice(2));
  assert.deepEqual(await client.threads.getHistory(thread, { checkpoint: { checkpoint_ns: "nowhere" } }), []);
});

row("threads.joinStream", async () => {
  const thread = await newThread();
  const options = { input: { text: "x" }, streamMode: "updates", streamResumable: true };
  const runs = [await client.runs.create(thread, "echo", options)];
  const done = [];
  const updates = [];
  const leaving = new AbortController(); // leaving the loop alone would keep the connection
  const joined = { lastEventId: "-", streamMode: ["run_modes"], signal: leaving.signal };
  for await (const part of client.threads.joinStream(thread, joined)) {
    if (part.event === "updates") updates.push(part.data);
    if (part.data?.status !== "run_done") continue;
    done.push(part.data.run_id);
    if (done.length === 2) break;
    runs.push(await client.runs.create(thread, "echo", options));
  }
  leaving.abort();
  assert.deepEqual(done, runs.map((run) => run.run_id));
  assert.deepEqual(updates, [{ node: { log: ["x"] } }, { node: { log: ["x"] } }]);
});

row("runs.stream", async () => {
  const thread = await newThread();
  let created;
  const parts = await all(
    client.runs.stream(thread, "nested", {
      input: { text: "x" },
      streamMode: ["values", "updates"],
      streamSubgraphs: true,
      streamResumable: true,
      onRunCreated: (run) => (created = run),
    }),
  );
  assert.equal(parts[0].event, "metadata");
  assert.deepEqual(created, { run_id: parts[0].data.run_id, thread_id: thread });
  assert.ok(names(parts).some((name) => name.startsWith("updates|child:")));
  assert.ok(parts.every((part) => part.id));
  assert.deepEqual(parts.at(-1).data.log, ["before", "after"]);
  const plain = await all(client.runs.stream(null, "echo", { input: { text: "x" } }));
  assert.deepEqual(names(plain), ["metadata", "values", "values"]);
  const failed = await all(client.runs.stream(null, "fails", { input: { text: "x" } }));
  assert.deepEqual(failed.at(-1).data, { error: "ValueError", message: "boom happened" });
});

row("runs.create", async () => {
  const thread = randomUUID();
  let created;
  const run = await client.runs.create(thread, "greets", {
    input: { text: "" },
    context: { word: "x" },
    config: { tags: ["t"], recursion_limit: 9 },
    metadata: { m: 1 },
    ifNotExists: "create",
    durability: "exit",
    onRunCreated: (metadata) => (created = metadata),
  });
  assert.deepEqual(created, { run_id: run.run_id, thread_id: thread });
  assert.deepEqual([run.status, run.metadata.m, run.kwargs.config.tags], ["pending", 1, ["t"]]);
  assert.deepEqual((await client.runs.join(thread, run.run_id)).log, ["x"]);
  const later = await client.runs.create(thread, "echo", { input: { text: "" }, afterSeconds: 600 });
  assert.equal((await client.threads.get(thread)).status, "busy");
  await client.runs.cancel(thread, later.run_id);
});

row("runs.createBatch", async () => {
  const made = await client.runs.createBatch(
    ["a", "b"].map((text) => ({ assistantId: "echo", input: { text }, on_completion: "keep" })),
  );
  assert.deepEqual(made.map((run) => run.kwargs.input.text), ["a", "b"]);
  const logs = await Promise.all(made.map(async (run) => (await client.runs.join(run.thread_id, run.run_id)).log));
  assert.deepEqual(logs, [["a"], ["b"]]);
});

row("runs.wait", async () => {
  const thread = await newThread();
  const asked = await client.runs.wait(thread, "asks", { input: { text: "x" } });
  assert.deepEqual(asked.__interrupt__.map((item) => item.value), [{ question: "may I?" }]);
  const resumed = await client.runs.wait(thread, "asks", { command: { resume: false } });
  assert.deepEqual(resumed.log, ["before", false, "after"]);
  await assert.rejects(client.runs.wait(null, "fails", { input: { text: "x" } }), /ValueError: boom happened/);
  const failed = await client.runs.wait(null, "fails", { input: { text: "x" }, raiseError: false });
  assert.deepEqual(failed, { __error__: { error: "ValueError", message: "boom happened" } });
});

row("runs.list", async () => {
  const thread = await newThread();
  for (const text of ["a", "b", "c"]) await textRun(thread, text);
  const found = await client.runs.list(thread, { limit: 2, offset: 1, status: "success" });
  assert.deepEqual(found.map((run) => run.kwargs.input.text), ["b", "a"]);
  const some = await client.runs.list(thread, { select: ["run_id", "status"] });
  assert.deepEqual(some.map(Object.keys), Array(3).fill(["run_id", "status"]));
});

row("runs.get", async () => {
  const thread = await newThread();
  await textRun(thread, "x");
  const [listed] = await client.runs.list(thread);
  assert.deepEqual(await client.runs.get(thread, listed.run_id), listed);
  await assert.rejects(client.runs.get(thread, randomUUID()), refused(404));
});

row("runs.delete", async () => {
  const thread = await newThread();
  await textRun(thread, "x");
  const [run] = await client.runs.list(thread);
  await client.runs.delete(thread, run.run_id);
  assert.deepEqual(await client.runs.list(thread), []);
});

row("runs.join", async () => {
  const thread = await newThread();
  const run = await client.runs.create(thread, "counts", { input: { n: 2, seconds: 0.1 } });
  const options = { cancelOnDisconnect: true };
  assert.deepEqual((await client.runs.join(thread, run.run_id, options)).log, [0, 1]);
  assert.deepEqual((await client.runs.join(thread, run.run_id)).log, [0, 1]);
});

row("runs.cancel", async () => {
  const thread = await newThread();
  let run = await running(thread);
  assert.equal(await client.runs.cancel(thread, run.run_id, false, "interrupt", { reason: "taken" }), undefined);
  await client.runs.join(thread, run.run_id);
  const ended = await client.runs.get(thread, run.run_id);
  assert.equal(ended.status, "interrupted");
  if (!isOlder) assert.match(ended.cancel_reason, /^taken:/);
  run = await running(thread);
  assert.deepEqual(await client.runs.cancel(thread, run.run_id, true, "rollback"), {});
  await assert.rejects(client.runs.get(thread, run.run_id), refused(404));
});

newer("runs.cancelMany", async () => {
  const thread = await newThread();
  const first = await running(thread);
  const others = [await running(thread), await running(thread)];
  const runIds = others.map((run) => run.run_id);
  assert.equal(await client.runs.cancelMany({ threadId: thread, runIds }), undefined);
  const statuses = (await client.runs.list(thread)).map((run) => run.status);
  assert.deepEqual(statuses.slice(0, 2), ["interrupted", "interrupted"]);
  await client.runs.cancel(thread, first.run_id, true);
  await assert.rejects(client.runs.cancelMany({ threadId: thread, runIds }), refused(404));
});

row("runs.joinStream", async () => {
  const thread = await newThread();
  const options = { input: { n: 5 }, streamMode: ["custom", "values"], streamResumable: true };
  const run = await client.runs.create(thread, "writes", options);
  await client.runs.join(thread, run.run_id);
  const whole = await all(client.runs.joinStream(thread, run.run_id, { lastEventId: "-1" }));
  assert.deepEqual(names(whole), ["metadata", "values", ...Array(5).fill("custom"), "values"]);
  const rest = await all(client.runs.joinStream(thread, run.run_id, { lastEventId: whole[3].id, streamMode: ["custom", "updates"] }));
  assert.deepEqual(rest.map((part) => part.data.i), [2, 3, 4]);
  const bare = await all(client.runs.joinStream(null, run.run_id, { lastEventId: "-1" }));
  assert.deepEqual(names(bare), names(whole));
});

row("crons.create", async () => {
  const made = await client.crons.create("echo", {
    schedule: "0 9 * * *",
    timezone: "Europe/Berlin",
    input: { text: "x" },
    metadata: { m: 1 },
    onRunCompleted: "keep",
    enabled: false,
  });
  assert.deepEqual([made.schedule, made.thread_id, made.on_run_completed], ["0 9 * * *", null, "keep"]);
  if (!isOlder) assert.deepEqual([made.timezone, made.enabled], ["Europe/Berlin", false]);
  await client.crons.delete(made.cron_id);
});

row("crons.createForThread", async () => {
  const thread = await newThread();
  const made = await client.crons.createForThread(thread, "echo", { schedule: NEVER, input: { text: "x" }, multitaskStrategy: "reject" });
  assert.deepEqual([made.thread_id, made.on_run_completed], [thread, null]);
  await client.threads.delete(thread);
});

row("crons.update", async () => {
  const made = await client.crons.create("echo", { schedule: NEVER, metadata: { a: 1 } });
  const changed = await client.crons.update(made.cron_id, { schedule: "0 0 2 1 *", metadata: { b: 2 }, enabled: false });
  assert.deepEqual([changed.schedule, changed.metadata, changed.enabled], ["0 0 2 1 *", { a: 1, b: 2 }, false]);
  await client.crons.delete(made.cron_id);
});

row("crons.delete", async () => {
  const made = await client.crons.create("echo", { schedule: NEVER });
  await client.crons.delete(made.cron_id);
  await assert.rejects(client.crons.delete(made.cron_id), refused(404));
});

row("crons.search", async () => {
  const thread = await newThread();
  const made = await client.crons.createForThread(thread, "echo", { schedule: NEVER });
  const found = await client.crons.search({ threadId: thread, assistantId: ECHO, limit: 5, sortBy: "created_at" });
  assert.deepEqual(found.map((cron) => cron.cron_id), [made.cron_id]);
  await client.threads.delete(thread);
});

row("crons.count", async () => {
  const thread = await newThread();
  await client.crons.createForThread(thread, "echo", { schedule: NEVER });
  assert.equal(await client.crons.count({ threadId: thread, assistantId: ECHO }), 1);
  await client.threads.delete(thread);
});

row("store.putItem", async () => {
  const namespace = ["js", randomUUID()];
  assert.equal(await client.store.putItem(namespace, "k", { v: 1 }, { index: false, ttl: 5 }), undefined);
  await client.store.putItem(namespace, "k", { v: 2 });
  assert.deepEqual((await client.store.getItem(namespace, "k")).value, { v: 2 });
});

row("store.getItem", async () => {
  const namespace = ["js", randomUUID()];
  await client.store.putItem(namespace, "k", { v: 1 });
  const item = await client.store.getItem(namespace, "k", { refreshTtl: true });
  assert.deepEqual([item.namespace, item.key, item.value], [namespace, "k", { v: 1 }]);
  assert.ok(item.createdAt && item.updatedAt);
  assert.equal(await client.store.getItem(namespace, "missing"), null);
});

row("store.deleteItem", async () => {
  const namespace = ["js", randomUUID()];
  await client.store.putItem(namespace, "k", {});
  await client.store.deleteItem(namespace, "k");
  assert.equal(await client.store.getItem(namespace, "k"), null);
});

row("store.searchItems", async () => {
  const label = randomUUID();
  for (const n of [0, 1, 2]) await client.store.putItem([label, "x"], `k${n}`, { n });
  const { items } = await client.store.searchItems([label], { filter: { n: { $gte: 1 } } });
  assert.deepEqual(items.map((item) => item.key).sort(), ["k1", "k2"]);
  assert.ok(items.every((item) => item.createdAt && item.updatedAt && item.score === null));
});

row("store.listNamespaces", async () => {
  const label = randomUUID();
  for (const last of ["x", "y"]) await client.store.putItem([label, last], "k", {});
  const found = await client.store.listNamespaces({ prefix: [label], suffix: ["x"] });
  assert.deepEqual(found, { namespaces: [[label, "x"]] });
  assert.deepEqual(await client.store.listNamespaces({ prefix: [label], maxDepth: 1 }), { namespaces: [[label]] });
});

row("every method has a row", () => {
  const methods = ["assistants", "threads", "runs", "crons", "store"].flatMap((part) =>
    Object.getOwnPropertyNames(Object.getPrototypeOf(client[part]))
      .filter((name) => name !== "constructor" && typeof client[part][name] === "function")
      .map((name) => `${part}.${name}`),
  );
  const streamsAnotherWay = ["threads.stream"]; // the second protocol
  assert.deepEqual(methods.filter((name) => !rows.has(name) && !streamsAnotherWay.includes(name)), []);
});

suite("rows", { concurrency: 4 }, () => {
  for (const [name, run] of rows) test(name, { timeout: 60_000 }, run);
});
