// Where the console's calls go, without a browser: `tests/unit/web/test_console_files.py` runs it.

import assert from "node:assert/strict";
import { beforeEach, suite, test } from "node:test";

const asked = [];
globalThis.document = { documentElement: { dataset: {} } }; // which modules look at when they are loaded
globalThis.sessionStorage = { getItem: () => null };
globalThis.location = { hash: "" };
globalThis.addEventListener = () => {};
globalThis.fetch = async (url, { method }) => {
  asked.push(`${method} ${new URL(url).pathname.split("/web/")[1] ?? new URL(url).pathname}`);
  if (method === "POST") return new Response('{"detail": "no"}', { status: 422 });
  return new Response(url.includes("/v2/deployments?") ? '{"resources": []}' : "[]", { headers: { "content-type": "application/json" } });
};
const { control, deployment } = await import("../../../web/static/console/core/api.js");
const { location_, start } = await import("../../../web/static/console/core/router.js");
const { runControl } = await import("../../../web/static/console/parts/run_control.js");

const gone = { status: 404, detail: "There is nothing at this address." };

suite("calls", () => {
  beforeEach(() => asked.splice(0));

  test("no id steps from the path it stands in to another", async () => {
    for (const id of ["..", "../../../v2/workers/w/drain", ".", "%2e%2E/x", "..\\..\\v2", ".\t./x", "a/..?b"]) {
      await assert.rejects(control("POST", `/v2/keys/${id}`), gone, id);
      await assert.rejects(deployment("chat").call("POST", `/threads/${id}/history`), gone, id);
    }
    await assert.rejects(deployment("..").call("POST", "/v2/keys"), gone);
    assert.deepEqual(asked.filter((call) => call.startsWith("POST")), []);
    await control("GET", "/v2/keys/a..b/.c?d=../e");
    assert.ok(asked.at(-1).endsWith("/v2/keys/a..b/.c"));
  });

  test("a link's thread is an id whatever it says", async () => {
    const told = [];
    const it = runControl(deployment("chat"), { onError: (error) => told.push(error), onThread: () => {} });
    await it.open("t/runs/r/cancel?");
    await it.start({ assistantId: "a", graphId: "g", body: { input: {} } });
    const own = asked.filter((call) => call.includes("/d/chat/"));
    assert.ok(own.length > 3);
    assert.deepEqual(own.filter((call) => !call.includes("/threads/t%2Fruns%2Fr%2Fcancel%3F")), []);
  });

  test("a link that cannot be read leads nowhere", () => {
    globalThis.location.hash = "#%2Fd%2Fchat%zz";
    start(() => ({}));
    assert.equal(location_.value.path, "%2Fd%2Fchat%zz");
  });
});
