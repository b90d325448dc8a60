// Timelines without a browser: rows, the scale of the axis, steps of a build. Run by `tests/unit/web/test_console_files.py`.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { around, axisOf, rowsOf, wholeOf } from "../../../web/static/console/parts/time_axis.js";
import { linesOf, stepsOf } from "../../../web/static/console/parts/build_steps.js";

const at = (seconds) => new Date(seconds * 1000).toISOString();
const band = (id, from, until, more = {}) => ({ id, parent: null, kind: "node", name: id, started_at: at(from), ended_at: until === null ? null : at(until), status: "success", detail: null, ...more });
const now = 100_000;

suite("timelines", () => {
  test("a band is followed by the bands within it, unless it is closed", () => {
    const bands = [band("queue", 0, 1), band("attempt", 1, 9), band("node", 2, 8, { parent: "attempt" }), band("model", 3, 4, { parent: "node" }), band("lost parent", 5, 6, { parent: "gone" })];
    const shown = (options) => rowsOf(bands, { now, ...options }).map(({ band: { id }, depth }) => `${depth} ${id}`);
    assert.deepEqual(shown({}), ["0 queue", "0 attempt", "1 node", "2 model", "0 lost parent"]);
    assert.deepEqual(shown({ closed: new Set(["node"]) }), ["0 queue", "0 attempt", "1 node", "0 lost parent"]);
    assert.deepEqual(shown({ view: { from: 2_500, until: 4_500 } }), ["0 attempt", "1 node", "2 model"]);
  });

  test("bands that contain each other are shown once", () => {
    assert.deepEqual(rowsOf([band("a", 0, 1, { parent: "a" }), band("b", 0, 1)], { now }).map((row) => row.band.id), ["a", "b"]);
  });

  test("a band that lasts ends now", () => {
    const [row] = rowsOf([band("a", 10, null)], { now });
    assert.equal(row.until, now);
    assert.deepEqual(wholeOf([band("a", 10, null)], now), { from: 10_000, until: now });
    assert.deepEqual(wholeOf([], now), { from: now, until: now + 1 });
  });

  test("the axis is linear without long waits", () => {
    const bands = [band("queue", 0, 2), band("attempt", 2, 10)];
    const axis = axisOf(bands, wholeOf(bands, now), now);
    assert.equal(axis.place(5_000), 0.5);
    assert.deepEqual(axis.ticks.map(({ text }) => text), ["0 ms", "2.5 s", "5.0 s", "7.5 s", "10 s"]);
    assert.deepEqual(axis.gaps, []);
  });

  test("the wait for a person is shortened beside runs of seconds", () => {
    const bands = [band("first", 0, 2), band("person", 2, 36_002, { kind: "person" }), band("second", 36_002, 36_004)];
    const axis = axisOf(bands, wholeOf(bands, now), now);
    assert.deepEqual(axis.gaps.map(({ left, width, text }) => [left, width, text]), [[0.44, 0.12, "10 h 0 min"]]);
    assert.ok(Math.abs(axis.place(36_002_000) - 0.56) < 1e-9);
    assert.equal(axis.place(36_004_000), 1);
    assert.deepEqual(axis.ticks.map(({ text }) => text), ["0 ms", "2.0 s", "10 h 0 min", "10 h 0 min"]);
  });

  test("many gaps leave room for the runs", () => {
    const bands = Array.from({ length: 30 }, (_, n) => band(`run ${n}`, n * 1_000, n * 1_000 + 1));
    const { parts, gaps } = axisOf(bands, wholeOf(bands, now), now);
    assert.equal(gaps.length, 29);
    const runs = parts.filter((part) => !part.isGap).reduce((sum, part) => sum + part.width, 0);
    assert.ok(runs > 0.59);
  });

  test("a view around a band has a margin", () => {
    const [row] = rowsOf([band("a", 1, 2)], { now });
    assert.deepEqual(around(row), { from: 950, until: 2_050 });
  });

  const revision = { id: "r", number: 3, created_at: at(0), endedAt: null };
  const line = (seconds, message, level = "INFO") => ({ timestamp: at(seconds), level, message });
  const lines = [line(1, "fetching the source archive"), line(2, "unpacked 2 files"), line(3, "resolving requirements"), line(5, "installing 3 packages"), line(6, " + a==1")];
  const steps = (all, status) => stepsOf(all, { ...revision, status }).map(({ name, started_at, ended_at, status: of }) => [name, Date.parse(started_at) / 1000, ended_at && Date.parse(ended_at) / 1000, of]);

  test("a step of a build lasts until the next one", () => {
    assert.deepEqual(steps([...lines, line(9, "deployed at http://x/d/y")], "DEPLOYED"), [
      ["Waits for a builder", 0, 1, "success"], ["Build of v3", 1, 9, "success"],
      ["fetching the source archive", 1, 3, "success"], ["resolving requirements", 3, 5, "success"], ["installing 3 packages", 5, 9, "success"],
    ]);
    assert.equal(steps(lines, "BUILDING").at(-1)[3], "running");
    assert.deepEqual(steps([...lines, line(8, "step 'install' failed: no", "ERROR")], "BUILD_FAILED").at(-1), ["installing 3 packages", 5, 8, "error"]);
    assert.deepEqual(steps([], "AWAITING_BUILD"), []);
  });

  test("the lines of a step are those between it and the next", () => {
    const [, , fetch] = stepsOf(lines, { ...revision, status: "BUILDING" });
    assert.deepEqual(linesOf(lines, fetch).map(({ message }) => message), ["fetching the source archive", "unpacked 2 files"]);
  });
});
