// Functions of the overview, without a browser: `tests/unit/web/test_console_files.py` runs it.

import assert from "node:assert/strict";
import { suite, test } from "node:test";

// Modules look at these when they are loaded.
globalThis.document = { documentElement: { dataset: {} } };
globalThis.sessionStorage = { getItem: () => null };
globalThis.addEventListener = () => {};
globalThis.setInterval = () => 0;
const { entryInWords, markOf } = await import("../../../web/static/console/parts/audit.js");
const { failedOf, filtersOf, reasonInWords, sorted, unrecordedInWords } = await import("../../../web/static/console/parts/failures.js");
const { saturationOf } = await import("../../../web/static/console/parts/pools.js");
const { standingOf, statusesOf } = await import("../../../web/static/console/parts/standing.js");
const { pathsOf } = await import("../../../web/static/console/parts/tiles.js");
const { costOf, needsAttention } = await import("../../../web/static/console/pages/overview.js");

const reason = (status, error, runs, deployment_id = "a") => ({ deployment_id, deployment: deployment_id, status, error, runs, last_ended_at: "" });
const unrecorded = (status, runs, deployment_id = "a") => ({ deployment_id, status, runs });
const failures = (more) => ({ from: "2026-01-01T00:00:00Z", until: "2026-01-01T01:00:00Z", reasons: [], unrecorded: [], incomplete: [], ...more });

suite("overview", () => {
  test("reasons are the error class, or the status in words, with cancelled runs last", () => {
    const reasons = [reason("interrupted", null, 9), reason("timeout", null, 1), reason("error", "KeyError", 3), reason("error", null, 2)];
    assert.deepEqual(sorted(reasons).map(reasonInWords), ["KeyError", "Error without a class", "Timed out", "Cancelled"]);
  });

  test("the link of a reason has the filters of exactly its runs", () => {
    assert.deepEqual(filtersOf(failures(), reason("error", "KeyError", 3)), { status: "error", error: "KeyError", since: "2026-01-01T00:00:00Z", until: "2026-01-01T01:00:00Z" });
  });

  test("failed runs with and without a record are counted by deployment, without cancelled runs", () => {
    const found = failures({
      reasons: [reason("error", "KeyError", 3), reason("timeout", null, 1), reason("interrupted", null, 9), reason("error", "KeyError", 7, "b")],
      unrecorded: [unrecorded("error", 2), unrecorded("interrupted", 5), unrecorded("error", 4, "b")],
    });
    assert.deepEqual(failedOf(found, "a"), { recorded: 4, unrecorded: 2 });
    assert.deepEqual(failedOf(found, "c"), { recorded: 0, unrecorded: 0 });
    assert.equal(failedOf({ ...found, incomplete: ["a"] }, "a"), null);
  });

  test("runs that left no record are named in a sentence", () => {
    assert.equal(unrecordedInWords(failures()), "");
    assert.match(unrecordedInWords(failures({ unrecorded: [unrecorded("error", 1)] })), /^1 failed run left no record: it was stateless/);
    assert.match(unrecordedInWords(failures({ unrecorded: [unrecorded("error", 2), unrecorded("interrupted", 1, "b")] })), /^2 failed and 1 cancelled runs left no record: they were/);
  });

  test("entries of the audit log are told in words", () => {
    const words = (action, detail = {}) => entryInWords({ action, detail });
    assert.equal(words("revision.deployed", { revision_number: 4 }), "v4 deployed");
    assert.equal(words("revision.deployed", { revision_number: 5, preview: "pr-1" }), "v5 deployed as preview pr-1");
    assert.equal(words("revision.failed", { revision_number: 4, status: "BUILD_FAILED" }), "v4 build failed");
    assert.equal(words("traffic.split", { traffic: [{ revision_number: 1, percent: 70 }, { revision_number: 2, percent: 30 }] }), "traffic split: v1 70 %, v2 30 %");
    assert.equal(words("key.changed", { fields: ["role", "max_run_tokens"] }), "key changed: role, tokens per run");
    assert.equal(words("secrets.changed", { revision_number: 3, variables_set: ["A"], variables_unset: ["B"] }), "variables of v3: A set; B removed");
    assert.equal(words("some.kind"), "some.kind");
    assert.deepEqual(["revision.failed", "revision.deployed", "key.revoked", "key.created"].map((action) => markOf({ action })), ["bad", "good", "warn", "busy"]);
  });

  test("a pool is saturated when runs wait for its slots or for a runner", () => {
    const pool = (more) => saturationOf({ runners: 1, draining: 0, pending: 0, running: 0, slots: 4, ...more });
    assert.equal(pool({ running: 1, pending: 2 }), "good");
    assert.equal(pool({ running: 4 }), "warn");
    assert.equal(pool({ running: 4, pending: 1 }), "bad");
    assert.equal(pool({ runners: 1, draining: 1, pending: 1 }), "bad");
    assert.equal(pool({ runners: 0, slots: 0 }), "good");
  });

  test("a status is made of the record alone, so that all pages agree", () => {
    const record = { status: "READY", active_revision_number: null, latest_revision_number: 1, latest_revision_status: "BUILD_FAILED" };
    assert.deepEqual(standingOf(statusesOf(record)).map(({ status }) => status), ["BUILD_FAILED"]);
    assert.deepEqual(standingOf(statusesOf({ ...record, active_revision_number: 1, latest_revision_number: 2 })), [{ status: "READY" }, { status: "BUILD_FAILED", title: "v2" }]);
  });

  test("a sparkline is interrupted by missing values, and a value between two of them is a dot", () => {
    const { line, area, dots } = pathsOf([0, 4, null, 2, null]);
    assert.equal(line, "M0 23L25 1");
    assert.equal(area, "M0 24L0 23L25 1L25 24Z");
    assert.equal(dots, "M75 12h0.01");
    assert.deepEqual(pathsOf([]), { line: "", area: "", dots: "" });
    assert.equal(pathsOf([0, 0]).line, "M0 23L100 23");
  });

  test("a cost is shown by day if any model has a price", () => {
    const now = Date.parse("2026-01-08T12:00:00Z");
    assert.equal(costOf([{ day: "2026-01-08", cost: null }], now), null);
    assert.deepEqual(costOf([{ day: "2026-01-08", cost: 2 }, { day: "2026-01-02", cost: 1 }, { day: "2025-12-01", cost: 9 }], now), { today: 2, sum: 3, days: [1, 0, 0, 0, 0, 0, 2] });
    assert.equal(costOf([{ day: "2026-01-08", cost: null }, { day: "2026-01-02", cost: 1 }], now).today, null);
    assert.equal(costOf([{ day: "2026-01-02", cost: 1 }], now).today, 0);
  });

  test("deployments with failures, waiting runs or a failed revision come first in a shortened list", () => {
    const row = (more) => needsAttention({ failed: 0, waiting: 0, record: { latest_revision_status: "DEPLOYED" }, ...more });
    assert.deepEqual([row({}), row({ failed: 1 }), row({ waiting: 1 }), row({ record: { latest_revision_status: "BUILD_FAILED" } }), row({ record: undefined })], [false, true, true, true, false]);
  });
});
