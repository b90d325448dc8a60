// Rules of the inbox page, without a browser: `tests/unit/web/test_console_files.py` runs it.

import assert from "node:assert/strict";
import { suite, test } from "node:test";

const { afterAnswer, draftText, expiryVerb, filtersOf, groupsOf, isAnswerable, linkState, nameOf, neighbour, snoozeTimes, titleOf } = await import("../../../web/static/console/parts/inbox.js");
const { headOf, wordsOf } = await import("../../../web/static/console/parts/question_shapes.js");

const NOW = Date.parse("2026-03-04T12:00:00Z");
const question = (id, value, more = {}) => ({ id, kind: "interrupt", value, status: "open", thread_id: "00000000-0000-0000-0000-0000deadbeef", thread_title: "", ...more });

suite("parts", () => {
  test("filters of the address become a query of the API", () => {
    const { filters, error } = filtersOf({ status: "all", deployment: "desk", assistant_id: "a", assignee: "ann", age: "before-24", metadata: "customer=acme, plan.level=3", question: "x", offset: "50" }, NOW);
    assert.deepEqual(filters, { status: "all", deployment: "desk", assistant_id: "a", assignee: "ann", asked_before: "2026-03-03T12:00:00.000Z", metadata: '{"customer":"acme","plan":{"level":3}}' });
    assert.equal(error, null);
    assert.equal(filtersOf({ age: "after-1" }, NOW).filters.asked_after, "2026-03-04T11:00:00.000Z");
    assert.deepEqual(filtersOf({ assistant_id: "a", age: "never" }, NOW).filters, {});
    assert.match(filtersOf({ metadata: "customer" }, NOW).error, /key=value/);
  });

  test("equal questions of several threads are one group", () => {
    const value = { question: "pay?" };
    const groups = groupsOf([question("1", value), question("2", "pay?"), question("3", { question: "pay?" }), question("4", value, { response_schema: { type: "string" } }), question("5", value, { kind: "breakpoint" })]);
    assert.deepEqual(groups.map((group) => group.map(({ id }) => id)), [["1", "3"], ["2"], ["4"], ["5"]]);
    const unread = ["6", "7"].map((id) => question(id, null, { is_value_left_out: true }));
    assert.equal(groupsOf(unread).length, 2);
    assert.equal(wordsOf(unread[0]), "A large question: open it to read it");
  });

  test("keys move within the list, and an answer leads to the next question", () => {
    const ids = ["a", "b", "c"];
    assert.deepEqual([neighbour(ids, "a", 1), neighbour(ids, "c", 1), neighbour(ids, "a", -1), neighbour(ids, "gone", 1), neighbour([], "a", 1)], ["b", "c", "a", "a", undefined]);
    assert.deepEqual([afterAnswer(ids, "a"), afterAnswer(ids, "c"), afterAnswer(["a"], "a"), afterAnswer(ids, "gone")], ["b", "b", undefined, "a"]);
  });

  test("a snooze ends in the future, and Monday is never today", () => {
    for (let day = 1; day <= 7; day += 1) {
      const now = new Date(2026, 2, day, 10, 30);
      const times = snoozeTimes(now);
      assert.ok(times.every(({ at }) => at > now));
      assert.deepEqual([times[3].at.getDay(), times[3].at.getHours()], [1, 9]);
      assert.equal(times[2].at.getDate(), day + 1);
    }
  });

  test("a question has words for a list", () => {
    assert.equal(wordsOf(question("1", "May **I** send `it`?\n> Dear\u001b[31m you")), "May I send it? Dear you");
    assert.equal(wordsOf(question("1", { message: "Which?", options: [1] })), "Which?");
    assert.equal(wordsOf(question("1", ["send", "pay"], { kind: "breakpoint" })), "Continue with send, pay?");
    assert.equal(wordsOf(question("1", null, { kind: "breakpoint" })), "Continue with the next node?");
    assert.equal(wordsOf(question("1", { action_requests: [{ name: "pay", args: {}, description: "20 EUR" }] })), "Approve pay? 20 EUR");
    assert.equal(wordsOf(question("1", { action_requests: [{ name: "pay", args: {} }, { name: "write", args: {} }] })), "Approve pay, write?");
    const asking = { action_request: { action: "Size", args: {} }, config: { allow_respond: true } };
    assert.equal(wordsOf(question("1", [asking])), "Answer Size?");
    assert.equal(wordsOf(question("1", { amount: 3 })), '{"amount":3}');
    assert.equal(wordsOf(question("1", null)), "null");
    assert.deepEqual(headOf({ text: "a", b: 1 }), { words: "a", rest: { b: 1 } });
    assert.equal(headOf([1]), null);
  });

  test("what was entered but not sent stays readable", () => {
    assert.equal(draftText(undefined), "");
    assert.equal(draftText({ view: "text", text: "", value: null }), "");
    assert.equal(draftText({ view: "text", text: "half an answer", value: null }), "half an answer");
    assert.equal(draftText({ view: "json", text: "", value: { a: 1 } }), '{\n  "a": 1\n}');
    assert.equal(draftText({ decisions: [{ choice: null, args: {}, message: "" }] }), "");
    assert.match(draftText({ decisions: [{ choice: "reject", args: {}, message: "too dear" }] }), /too dear/);
  });

  test("links, titles and names have their words", () => {
    const link = { expires_at: "2026-03-05T00:00:00Z", revoked_at: null, used_at: null };
    const states = (isOpen) => [link, { ...link, used_at: "x" }, { ...link, revoked_at: "x" }, { ...link, expires_at: "2026-03-04T00:00:00Z" }].map((each) => linkState(each, isOpen, NOW));
    assert.deepEqual(states(true), ["active", "used", "revoked", "expired"]);
    assert.deepEqual(states(false), ["closed", "used", "revoked", "closed"]);
    assert.deepEqual([titleOf(question("1", "")), titleOf(question("1", "", { thread_title: "Order 1" }))], ["Thread deadbeef", "Order 1"]);
    assert.deepEqual([nameOf({ key: { id: "k1", name: "ops" } }), nameOf({ key: { id: "k1", name: "" } }), nameOf({ key: null }), nameOf({ user: { id: "u1", name: "Ann" }, key: null })], ["ops", "k1", "me", "Ann"]);
    assert.deepEqual([0, 1].map((now) => expiryVerb("1970-01-01T00:00:00.001Z", now)), ["expires", "expired"]);
    assert.deepEqual(["open", "snoozed", "answered", "expired", "closed"].map((status) => isAnswerable({ status })), [true, true, false, false, false]);
  });
});
