// What the console's parts make of values, without a browser: `tests/unit/web/test_console_files.py` runs it.

import assert from "node:assert/strict";
import { suite, test } from "node:test";

// Modules look at these when they are loaded.
globalThis.document = { documentElement: { dataset: {} } };
globalThis.sessionStorage = { getItem: () => null };
const { aligned } = await import("../../../web/static/console/parts/alignment.js");
const { failedTask, lanesOf, mainLine, makerOf, questionsOf, secondsOf, withNewer, writtenBy } = await import("../../../web/static/console/parts/checkpoints.js");
const { moment, rate, revisionName, runName, short, threadTitle } = await import("../../../web/static/console/core/format.js");
const { legendOf } = await import("../../../web/static/console/parts/chart.js");
const { difference } = await import("../../../web/static/console/parts/diff.js");
const { changedKeys, followers } = await import("../../../web/static/console/parts/edit_state.js");
const { preview } = await import("../../../web/static/console/parts/event_log.js");
const { feedbackOf, feedbackText, filterOf, since } = await import("../../../web/static/console/parts/filters.js");
const { isMessages, textOf } = await import("../../../web/static/console/parts/message.js");
const { queueInWords, reasonOf, tookOf, waitsInWords } = await import("../../../web/static/console/parts/runs.js");
const { changeInWords, differenceInWords, figureInWords, outcomesInWords, verdictInWords } = await import("../../../web/static/console/parts/replays.js");
const { servedInWords, standingOf } = await import("../../../web/static/console/parts/standing.js");
const { createHistory } = await import("../../../web/static/console/parts/thread_history.js");

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
    assert.deepEqual(makerOf(state("1", "0"), state("0", null, { tasks: [{ name: "__start__" }] })), { names: ["start"], isNode: false });
    assert.deepEqual([makerOf(state("1", "0"), state("0", null)), makerOf(state("1", "0"), undefined)].map(({ names }) => names), [["step"], ["step"]]);
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

  const at = (seconds) => new Date(seconds * 1000).toISOString();

  const asking = (result) => [{ name: "slow", result: {} }, { name: "ask", interrupts: [{ id: "q", value: "?" }], result }];

  test("a question is open until its task has a result", () => {
    const asked = state("2", "1", { created_at: at(1), tasks: asking({}) });
    assert.deepEqual([questionsOf(asked), questionsOf({ ...asked, tasks: asking(null) })], [[{ name: "ask", isOpen: false }], [{ name: "ask", isOpen: true }]]);
  });

  test("a node that failed and then succeeded in a later run has not failed", () => {
    const failed = state("2", "1", { created_at: at(1), tasks: [{ name: "a", error: "ValueError()", result: {} }] });
    assert.equal(failedTask(failed), undefined);
    assert.equal(failedTask({ ...failed, tasks: [{ name: "a", error: "ValueError()" }] }).name, "a");
  });

  test("the time until somebody answered is none of a node's", () => {
    const parent = state("2", "1", { created_at: at(1), tasks: asking({}) });
    const child = state("3", "2", { created_at: at(102), metadata: { run_id: "later" } });
    const runs = new Map([["r", { started_at: at(0), ended_at: at(3) }], ["later", { started_at: at(100), ended_at: at(103) }]]);
    assert.equal(secondsOf(child, parent, runs), 4);
    assert.equal(secondsOf(child, parent, new Map()), null);
    const same = state("3", "2", { created_at: at(7) });
    assert.equal(secondsOf(same, parent, new Map()), 6);
    const lost = [{ started_at: at(0), ended_at: at(2) }];
    assert.equal(secondsOf(same, { ...parent, tasks: [] }, new Map([["r", { started_at: at(0), ended_at: at(9), attempts: lost }]])), 6);
    const forked = { ...parent, tasks: [{ name: "a", result: {} }] };
    assert.equal(secondsOf(child, forked, runs), 2);
  });

  test("a history that is read while it is asked for anew is read once more afterwards", async () => {
    let release;
    const held = new Promise((done) => { release = done; });
    const bodies = [];
    const api = { call: async (_method, _path, { body }) => {
      bodies.push(body);
      if (bodies.length === 1) await held;
      return [state("1", null, { created_at: String(bodies.length) })];
    } };
    const history = createHistory(api, "t");
    const first = history.refresh();
    await Promise.resolve(); // now it reads
    const later = [history.refresh(), history.refresh()];
    release();
    await Promise.all([first, ...later]);
    assert.equal(bodies.length, 2);
    assert.equal(history.rows.value[0].created_at, "2");
  });

  test("bars are summed beside their names, and of lines a time is named", () => {
    const data = [[10, 20, 30], [1, null, 3], [null, 4, null]];
    assert.deepEqual(legendOf(data, "bars", null), { values: [4, 4], at: null, isSum: true });
    assert.deepEqual(legendOf(data, "bars", 0), { values: [1, null], at: 10, isSum: false });
    assert.deepEqual(legendOf(data, "line", null), { values: [3, null], at: 30, isSum: false });
    assert.deepEqual(legendOf([[10, 20], [1, null]], "line", null), { values: [1], at: 10, isSum: false });
    assert.deepEqual(legendOf([[], []], "bars", null), { values: [null], at: null, isSum: true });
    assert.deepEqual(legendOf([[10], [null]], "line", null), { values: [null], at: null, isSum: false });
  });

  test("a deployment that never served is not ready", () => {
    const words = (...of) => standingOf({ status: of[0], serving: of[1], newest: of[2], newestStatus: of[3] }).map(({ status }) => status);
    assert.deepEqual(words("READY", null, 1, "BUILDING"), ["BUILDING"]);
    assert.deepEqual(words("UNUSED", null, 1, "BUILD_FAILED"), ["BUILD_FAILED"]);
    assert.deepEqual(words("UNUSED", null, null, null), ["UNUSED"]);
    assert.deepEqual(words("READY", 1, 1, "DEPLOYED"), ["READY"]);
    assert.deepEqual(words("READY", 1, 2, "BUILD_FAILED"), ["READY", "BUILD_FAILED"]);
    assert.deepEqual(words("AWAITING_DELETE", null, 1, "BUILDING"), ["AWAITING_DELETE", "BUILDING"]);
  });

  test("equal items of two lists stand side by side, and others are paired between them", () => {
    const rows = (one, other) => aligned([...one], [...other], (item) => item).map(({ original = "-", replay = "-", isSame }) => `${original}${replay}${isSame ? "" : "!"}`);
    assert.deepEqual(rows("abc", "abc"), ["aa", "bb", "cc"]);
    assert.deepEqual(rows("aba", "ababa"), ["aa", "bb", "aa", "-b!", "-a!"]);
    assert.deepEqual(rows("axc", "ayzc"), ["aa", "xy!", "-z!", "cc"]);
    assert.deepEqual(rows("ab", ""), ["a-!", "b-!"]);
  });

  const replay = (more) => ({ status: "done", verdict: null, fail_on: "errors>0", reason: null, summary: { rules: [] }, counts: { total: 3, waiting: 0, running: 0, same: 2, changed: 1, diverged: 0, failed: 0, skipped: 0 }, ...more });

  test("a replay's verdict is a sentence, also without one", () => {
    const rule = (text, failed) => ({ rule: text, failed });
    const said = (more) => { const { title, text } = verdictInWords(replay(more)); return `${title}: ${text}`; };
    assert.equal(said({ verdict: "failed", summary: { rules: [rule("errors>0", true), rule("cost>1", false)] } }), "Failed: 1 of 2 conditions are met.");
    assert.equal(said({ verdict: "passed", summary: { rules: [rule("errors>0", false)] } }), "Passed: The condition of the rule is not met.");
    assert.equal(said({ summary: { rules: [rule("cost>+20%", null)] } }), "Not judged: There are no figures for cost>+20%.");
    assert.equal(said({ status: "stopped", reason: "max_cost is reached" }), "Stopped at a bound: Max_cost is reached. The rule is not judged.");
    assert.equal(said({ fail_on: null }), "Report: The replay has no rule, so it only reports.");
    assert.equal(said({ status: "running", summary: null }), "Running: The rule is judged when all cases have ended.");
    assert.equal(outcomesInWords(replay({}).counts), "3 of 3: 2 same, 1 changed");
  });

  test("figures of both sides have their units, and their change", () => {
    assert.deepEqual(["cost", "duration_seconds", "tokens", "score"].map((name) => figureInWords(name, 0.01234)), ["$0.0123", "12 ms", "0", "0.012"]);
    assert.equal(figureInWords("cost", null), "–");
    assert.deepEqual([[100, 120], [100, 99.5], [0, 3], [5, 5], [null, 1]].map(([one, other]) => changeInWords("tokens", one, other)), ["+20 %", "−0.5 %", "+3", "±0 %", ""]);
    assert.equal(changeInWords("score", 0.9, 0.7), "−0.2");
  });

  test("a case says where it differs first", () => {
    const comparison = { first_difference: { node: "answer", field: "messages.1.content" }, report: {} };
    assert.equal(differenceInWords({ outcome: "changed", reason: null, comparison }), "node answer, field messages.1.content");
    assert.equal(differenceInWords({ outcome: "diverged", reason: null, comparison: { ...comparison, unrecorded_tool: "mail" } }), "calls mail with other arguments");
    assert.equal(differenceInWords({ outcome: "skipped", reason: "the input is gone", comparison: null }), "the input is gone");
  });

  test("all revisions that get runs are named", () => {
    const traffic = [{ revision_number: 1, percent: 90 }, { revision_number: 4, percent: 10 }];
    assert.deepEqual([servedInWords(traffic, 4), servedInWords(traffic.slice(1), 4), servedInWords(null, 4)], ["v1 90 %, v4 10 %", "v4", "v4"]);
  });

  test("ids that were made in the same minute are told apart, and what is rare is not none", () => {
    assert.deepEqual([short("01a20cbf-a17f-7091-9e4b-211702f71247"), short("01a20cbf-a185-7451-99a0-2ec3e0da5ea0")], ["02f71247", "e0da5ea0"]);
    assert.deepEqual([short("0123456789abcdef"), short("tEBOgmAi"), short(null)], ["01234567", "tEBOgmAi", "–"]);
    assert.deepEqual([rate(0), rate(0.002), rate(0.5), rate(123.4)], ["0", "< 0.01", "0.5", "123"]);
  });

  test("what an update leaves out of what came next is named", () => {
    const edited = state("1", null, { tasks: [{ name: "right", path: ["__pregel_pull", "right"] }, { name: "each", path: ["__pregel_push", 0] }, { name: "left" }] });
    assert.deepEqual(followers(edited, ["left", "left"]), { next: ["left"], lost: ["right"] });
    assert.deepEqual(followers(edited, []), { next: [], lost: ["right", "left"] });
  });

  test("a thread is called by its title, else by its short id, and a title cannot change the page", () => {
    const thread = { thread_id: "01a20cbf-a17f-7091-9e4b-211702f71247" };
    assert.equal(threadTitle(thread), "Thread 02f71247");
    assert.equal(threadTitle({ ...thread, title: "" }), "Thread 02f71247");
    assert.equal(threadTitle({ ...thread, extracted: { title: "When does\n it arrive?" } }), "When does it arrive?");
    assert.equal(threadTitle({ ...thread, extracted: { title: "first message" }, metadata: { title: "Order 1042" } }), "Order 1042");
    assert.equal(threadTitle({ ...thread, metadata: { title: { not: "a text" } } }), "Thread 02f71247");
    assert.equal(threadTitle({ ...thread, title: "\u001b[31mred\u202etxt" }), "red\ufffdtxt");
    assert.equal(threadTitle({ ...thread, title: "x".repeat(500) }).length, 120);
  });

  test("a run is called by its assistant and time, a revision by its number", () => {
    const now = new Date(2026, 10, 24, 18, 0, 0).getTime();
    assert.equal(moment(new Date(2026, 10, 24, 9, 3, 21).getTime(), now), "09:03:21");
    assert.equal(moment(new Date(2026, 9, 4, 9, 3, 21).getTime(), now), "4 Oct 09:03");
    assert.equal(moment(new Date(2025, 9, 4, 9, 3, 21).getTime(), now), "4 Oct 2025 09:03");
    assert.equal(moment(null), "–");
    const run = { created_at: new Date(2020, 0, 2, 3, 4, 5).toISOString(), metadata: { graph_id: "agent" } };
    assert.equal(runName(run), "agent · 2 Jan 2020 03:04");
    assert.equal(runName(run, { name: "Support", graph_id: "agent" }), "Support · 2 Jan 2020 03:04");
    assert.equal(runName({ created_at: run.created_at }), "Run · 2 Jan 2020 03:04");
    assert.deepEqual([revisionName(3), revisionName(null)], ["v3", "–"]);
  });

  test("a run that stopped for a person says what it waits for", () => {
    const words = (waits_for) => waitsInWords({ status: "success", waits_for });
    assert.deepEqual([words("answer"), words("resume"), words(undefined)], ["waits for an answer", "waits to be resumed", ""]);
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

  test("a filter by feedback is a key with a bound of its score", () => {
    assert.deepEqual(["thumbs", " thumbs<0.5 ", "a<b>=-2", "x>1"].map(feedbackOf), [
      { key: "thumbs" }, { key: "thumbs", below: 0.5 }, { key: "a<b", at_least: -2 }, { key: "x>1" },
    ]);
    assert.equal(feedbackOf("  "), undefined);
    const texts = ["thumbs", "thumbs<0.5", "a<b>=-2"];
    assert.deepEqual(texts.map((text) => feedbackText(/** @type {any} */ (feedbackOf(text)))), texts);
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
