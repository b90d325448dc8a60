// The console's design system, without a browser: icons, columns of tables, fuzzy search and the palette's groups.

import assert from "node:assert/strict";
import { suite, test } from "node:test";

// Modules read these when they are loaded.
globalThis.document = { documentElement: { dataset: {} } };
globalThis.sessionStorage = { getItem: () => null, setItem: () => {}, removeItem: () => {} };
globalThis.localStorage = { getItem: () => null, setItem: () => {} };
const { match, ranked } = await import("../../../web/static/console/core/fuzzy.js");
const { recent, remember } = await import("../../../web/static/console/core/recent.js");
const { me } = await import("../../../web/static/console/core/session.js");
const { ICONS } = await import("../../../web/static/console/parts/icons.js");
const { groupsOf } = await import("../../../web/static/console/parts/palette.js");
const { searchable, searched } = await import("../../../web/static/console/parts/palette_sources.js");
const { withDeployment } = await import("../../../web/static/console/parts/page.js");
const { fitOf, placesOf } = await import("../../../web/static/console/parts/table.js");

const labels = (found) => found.map(({ item }) => item.label);
const items = (...names) => names.map((label) => ({ label, group: "Pages", icon: "runs", address: `#/${encodeURIComponent(label)}` }));

suite("look", () => {
  test("an icon is small", () => {
    for (const [name, path] of Object.entries(ICONS)) assert.ok(path.length <= 300, `${name}: ${path.length} bytes`);
  });

  test("a column has its place in a card", () => {
    const places = (...columns) => placesOf(columns).map(({ place }) => place);
    assert.deepEqual(places({ title: "", key: "choose" }, { title: "Run", key: "run" }, { title: "Status", key: "status" }, { title: "Took", key: "took" }, { title: "", key: "actions" }), [
      "in-choice", "in-head", "in-corner", "in-facts", "in-actions",
    ]);
    assert.deepEqual(places({ title: "Id", key: "id", priority: 3 }, { title: "Name", key: "name", primary: true }, { title: "Age", key: "age", priority: 1 }), ["in-wide", "in-head", "in-corner"]);
    assert.deepEqual(places({ title: {}, key: "all" }, { title: "Thread", key: "thread" }), ["in-choice", "in-head"]);
  });

  test("a table fits its box as a table, without columns of low priority, or as cards", () => {
    assert.deepEqual([fitOf(1000, 8), fitOf(900, 8), fitOf(700, 8), fitOf(700, 5), fitOf(366, 5), fitOf(366, 2)], ["", "tight", "cards", "tight", "cards", "tight"]);
  });

  test("the palette searches only deployments that accept the caller", () => {
    const all = [["open", "read"], ["guarded", "run"], ["closed", null]].map(([name, least_key_role]) => ({ id: name, name, status: "READY", least_key_role }));
    const before = me.value;
    me.value = { role: "read", organization: { id: "1", name: "one" }, key: null, version: "", dev: false };
    assert.deepEqual(searchable(all), ["open"]);
    me.value = { ...me.value, role: "run" };
    assert.deepEqual(searchable(all), ["open", "guarded"]);
    assert.deepEqual(searched(searchable(all), "closed"), []);
    assert.deepEqual(searched(searchable(all), "guarded"), ["guarded"]);
    me.value = before;
  });

  test("every word of a query must occur, and the start of a word counts more", () => {
    assert.equal(match("support runs", { label: "Runs" }), null);
    assert.ok(match("support runs", { label: "Runs", keywords: ["support"] }));
    assert.deepEqual(labels(ranked("run", items("Trunk", "Run of support", "Latest run"))), ["Run of support", "Latest run", "Trunk"]);
    assert.deepEqual(match("order", { label: "Where is my order 1042?" }).ranges, [[12, 17]]);
    assert.deepEqual(match("or 10", { label: "order 10" }).ranges, [[0, 2], [6, 8]]);
  });

  test("letters in their order match, but not across a whole text", () => {
    assert.ok(match("wrkrs", { label: "Workers" }));
    assert.equal(match("order", { label: "OAuth providers" }), null);
    assert.equal(match("(.*", { label: "Workers" }), null);
  });

  test("breadcrumbs of a deployment's page begin with the deployment", () => {
    const runs = { label: "Runs", href: "#/d/shop/runs" };
    assert.deepEqual(withDeployment([], undefined, null), []);
    assert.deepEqual(withDeployment([runs], "sh--replay-0123abcd", null, "shop"), [{ label: "shop" }, { label: "Replays", href: "#/d/shop/replays" }, runs]);
    assert.deepEqual(withDeployment([runs], "shop", { id: "one", name: "shop" }), [{ label: "shop", href: "#/deployments/one" }, runs]);
    assert.deepEqual(withDeployment([{ label: "shop" }, runs], "shop", { id: "two", name: "other" }), [{ label: "shop", href: undefined }, runs]);
  });

  test("an id is found by its end", () => {
    const thread = { label: "Where is it?", keywords: ["01a20cbf-a17f-7091-9e4b-211702f71247"] };
    const other = { label: "And this?", keywords: ["02f71247-a17f-7091-9e4b-2117a0000000"] };
    assert.deepEqual(labels(ranked("02f71247", [other, thread])), ["Where is it?", "And this?"]);
  });

  test("pages visited lately come first", () => {
    me.value = { role: "read", organization: { id: "one", name: "one" }, key: null, version: "", dev: false };
    remember("/Latest run", "Latest run – runyard");
    remember("/elsewhere", "A thread – runyard");
    remember("/elsewhere", "A renamed thread – runyard");
    remember("/nothing", "runyard");
    assert.deepEqual(recent.value, [{ address: "#/elsewhere", title: "A renamed thread" }, { address: "#/Latest%20run", title: "Latest run" }]);
    assert.deepEqual(groupsOf("", items("Usage")).map(({ name, results }) => [name, labels(results)]), [["Recent", ["A renamed thread", "Latest run"]], ["Pages", ["Usage"]]]);
    assert.deepEqual(groupsOf("run", items("Run of support", "Latest run")).map(({ results }) => labels(results)), [["Latest run", "Run of support"]]);
    assert.deepEqual(groupsOf("renamed", items("Usage")).map(({ name }) => name), ["Recent"]);
    me.value = null;
  });
});
