// What the console's parts make of values, without a browser: `tests/unit/web/test_console_parts.py` runs it.

import assert from "node:assert/strict";
import { suite, test } from "node:test";

globalThis.document = { documentElement: { dataset: {} } }; // which modules look at when they are loaded
const { lanesOf, mainLine, makerOf, spansOf, withNewer, writtenBy } = await import("../../../web/static/console/parts/checkpoints.js");
const { difference } = await import("../../../web/static/console/parts/diff.js");
const { changedKeys } = await import("../../../web/static/console/parts/edit_state.js");
const { preview } = await import("../../../web/static/console/parts/event_log.js");
const { filterOf, since } = await import("../../../web/static/console/parts/filters.js");
const { isMessages, textOf } = await import("../../../web/static/console/parts/message.js");
const { queueInWords, reasonOf, tookOf } = await import("../../../web/static/console/parts/runs.js");

const shown = (before, after) => difference(before, after).changes.map(({ kind, path }) => `${kind} ${path}`);

suite("parts", () => {
  test("a difference names the paths that were added, changed and removed", () => {
    assert.deepEqual(shown({ a: 1, b: { c: [1, 2] }, gone: 0 }, { a: 2, b: { c: [1, 2, 3] }, "new key": {} }), [
      "changed a", "added b.c[2]", 'added ["new key"]', "removed gone",
    ]);
    assert.deepEqual(shown({ a: [{ x: 1 }] }, { a: [{ x: 1 }] }), []);
    assert.deepEqual(shown({ a: null }, { a: undefined }), ["removed a"]);
  });

  test("a list that lost or gained items at either end is not told item by item", () => {
    const long = Array.from({ length: 10_000 }, (_, at) => at);
    assert.deepEqual(shown(long, [-1, ...long]), ["added [0]"]);
    assert.deepEqual(shown(long, long.slice(0, -2)), ["removed [9998]", "removed [9999]"]);
  });

  test("a message is one change, however much of it has changed", () => {
    const message = (content, id) => ({ type: "ai", id, content, tool_calls: [] });
    assert.deepEqual(shown({ messages: [message("a", 1)] }, { messages: [message("b", 2), message("c", 3)] }), ["changed messages[0]", "added messages[1]"]);
    assert.equal(isMessages([message("a", 1)]), true);
    assert.equal(isMessages([{ type: "ai" }]), false);
    assert.equal(textOf([{ type: "text", text: "one" }, { type: "image" }]), "one\n[image]");
  });

  test("a difference is bounded in number and in depth", () => {
    const many = Object.fromEntries(Array.from({ length: 5_000 }, (_, at) => [`k${at}`, at]));
    const { changes, isCut } = difference({}, many);
    assert.deepEqual([changes.length, isCut], [200, true]);
    let deep = { end: 1 };
    for (let level = 0; level < 5_00; level++) deep = { deep };
    assert.equal(difference({}, { deep }).changes.length, 1);
  });

  test("what a value inherits is none of its keys", () => {
    assert.deepEqual(shown({}, JSON.parse('{"__proto__": {"x": 1}, "constructor": 2}')), ["added __proto__", "added constructor"]);
  });

  const state = (id, parent, more = {}) => ({
    checkpoint: { checkpoint_id: id }, parent_checkpoint: parent && { checkpoint_id: parent }, metadata: { source: "loop", run_id: "r" }, tasks: [], next: [], created_at: null, ...more,
  });

  test("a checkpoint is made by the tasks of the one before, or by what is not a node", () => {
    const parent = state("1", null, { tasks: [{ name: "a", result: { x: 1 } }, { name: "b", result: { y: 1 } }, { name: "b" }] });
    assert.deepEqual(makerOf(state("2", "1"), parent), { names: ["a", "b × 2"], isNode: true });
    assert.deepEqual(writtenBy(parent), ["x", "y"]);
    assert.deepEqual(makerOf(state("2", "1", { metadata: { source: "update" } }), parent), { names: ["update"], isNode: false });
    assert.deepEqual(makerOf(state("1", "0"), state("0", null, { tasks: [{ name: "__start__" }] })).isNode, false);
  });

  test("a fork has a lane of its own until it meets the line it left", () => {
    const rows = [{ id: "5", parent: "2" }, { id: "4", parent: "3" }, { id: "3", parent: "2" }, { id: "2", parent: "1" }, { id: "1", parent: null }];
    assert.deepEqual(lanesOf(rows).map(({ lane }) => lane), [0, 1, 1, 0, 0]);
    assert.deepEqual(lanesOf(rows)[3].merges, [1]);
    assert.deepEqual([...mainLine(rows)], ["5", "2", "1"]);
  });

  test("new checkpoints are put before those that are known, unless some between them are missing", () => {
    const known = [state("2", "1"), state("1", null)];
    const fresh = [state("3", "2"), state("2", "1", { tasks: [{ name: "a" }] })];
    assert.deepEqual(withNewer(known, fresh).map((each) => [each.checkpoint.checkpoint_id, each.tasks.length]), [["3", 0], ["2", 1], ["1", 0]]);
    assert.equal(withNewer(known, [state("9", "8")]), null);
  });

  test("a node works from the checkpoint that names it until the next", () => {
    const at = (seconds) => new Date(seconds * 1000).toISOString();
    const states = [
      state("3", "2", { created_at: at(4), tasks: [{ name: "b", error: "ValueError('x')" }] }),
      state("2", "1", { created_at: at(2), tasks: [{ name: "a" }] }),
      state("1", null, { created_at: at(1), metadata: { source: "input", run_id: "r" }, tasks: [{ name: "__start__" }] }),
    ];
    const spans = spansOf(states, { runId: "r", startedAt: at(0), endedAt: at(9) });
    assert.deepEqual(spans.map(({ name, from, until, status }) => [name, from, until, status]), [["a", 2000, 4000, "success"], ["b", 4000, 9000, "error"]]);
    assert.equal(spansOf(states.slice(1), { runId: "r", startedAt: at(0), endedAt: null })[0].status, "running");
    const resumed = [state("2", "1", { created_at: at(12), tasks: [] }), state("1", null, { created_at: at(1), metadata: { run_id: "earlier" }, tasks: [{ name: "ask" }] })];
    assert.deepEqual(spansOf(resumed, { runId: "r", startedAt: at(10), endedAt: at(12) }).map(({ name, from }) => [name, from]), [["ask", 10_000]]);
  });

  test("a filter is JSON or key=value", () => {
    assert.deepEqual(filterOf(' user=ann, n=3, is=true, code="3", a.b=x y '), { user: "ann", n: 3, is: true, code: "3", a: { b: "x y" } });
    assert.deepEqual(filterOf('{"a": [1, "x,y"]}'), { a: [1, "x,y"] });
    assert.deepEqual(filterOf('tags=["a", "b"], text="x, y"'), { tags: ["a", "b"], text: "x, y" });
    assert.equal(filterOf("  "), undefined);
    assert.throws(() => filterOf("ann"), /neither key=value nor JSON/);
    assert.throws(() => filterOf("{a"), /not JSON/);
    filterOf("__proto__.polluted=1");
    assert.equal({}.polluted, undefined);
  });

  test("a period begins so long ago", () => {
    assert.equal(since("1h", Date.UTC(2026, 0, 1, 12)), "2026-01-01T11:00:00.000Z");
    assert.deepEqual([since(""), since("never")], [undefined, undefined]);
  });

  test("what a run waits for, how it ended and how long it took is said in words", () => {
    assert.equal(queueInWords({ position: 3, waiting_seconds: 1, reason: "runners are full" }), "waits for a slot: the runners are full, 2 before it");
    assert.equal(queueInWords({ position: 1, waiting_seconds: 1, reason: "no runner of pool gpu" }), "no runner of pool gpu: start one, next in line");
    assert.equal(reasonOf({ status: "error", error: { error: "ValueError", message: "boom" } }), "ValueError: boom");
    const times = { started_at: "2026-01-01T00:00:00Z", ended_at: "2026-01-01T00:00:02Z" };
    assert.deepEqual([tookOf({ status: "pending" }), tookOf({ status: "success", ...times })], [null, 2]);
  });

  test("only what was changed is written", () => {
    assert.deepEqual(changedKeys({ a: [1], b: 2 }, { a: [1], b: 3, c: null }), { b: 3, c: null });
    assert.deepEqual(changedKeys({}, [1]), {});
  });

  test("a preview of a large value is short and has no escapes", () => {
    const text = preview({ text: "\u001b[31m" + "x".repeat(1_000_000), list: Array.from({ length: 100_000 }, () => ({})) });
    assert.ok(text.length <= 240 && !text.includes("\u001b"), text);
    assert.equal(preview([1, { a: null }]), "[1, {a: null}]");
  });
});
