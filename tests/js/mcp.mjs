// Tools of a deployment for the TypeScript client of MCP, in the newest protocol and in an older one.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const url = process.env.DEPLOYMENT_URL;
const headers = { "x-api-key": process.env.DEPLOYMENT_KEY };
const TOOLS = ["asks", "books", "counts", "draws", "fails", "shows", "sleeps", "talks"];
const ERAS = [
  [undefined, "2025-11-25"],
  ["auto", "2026-07-28"],
];

async function connected(mode, path = "/mcp") {
  const client = new Client(
    { name: "test", version: "1" },
    mode === undefined ? {} : { versionNegotiation: { mode } },
  );
  const transport = new StreamableHTTPClientTransport(new URL(`${url}${path}`), { requestInit: { headers } });
  await client.connect(transport);
  return client;
}

const call = (client, name, args, options) => client.callTool({ name, arguments: args }, options);

async function post(path, body) {
  const sent = { method: "POST", headers: { ...headers, "content-type": "application/json" } };
  return (await fetch(`${url}${path}`, { ...sent, body: JSON.stringify(body) })).json();
}

suite("mcp", () => {
  test("it negotiates and lists", async () => {
    for (const [mode, version] of ERAS) {
      for (const path of ["/mcp", "/mcp/"]) {
        const client = await connected(mode, path);
        assert.equal(client.getNegotiatedProtocolVersion(), version);
        const { tools } = await client.listTools();
        assert.deepEqual(tools.map((tool) => tool.name).sort(), TOOLS);
        await client.close();
      }
    }
  });

  test("it calls", async () => {
    for (const [mode] of ERAS) {
      const client = await connected(mode);
      const said = await call(client, "talks", { messages: "hi" });
      assert.equal(said.content[0].text, "hello big world");
      const failed = await call(client, "fails", { messages: "hi" });
      assert.equal(failed.isError, true);
      assert.equal(failed.content[0].text, "ValueError: boom happened");
      for (const name of ["nothing", "日本語"]) {
        await assert.rejects(call(client, name, {}), (error) => error.code === -32602);
      }
      await client.close();
    }
  });

  test("it is told of progress", async () => {
    for (const [mode] of ERAS) {
      const seen = [];
      const client = await connected(mode);
      const onprogress = ({ progress }) => seen.push(progress);
      const said = await call(client, "sleeps", { messages: "hi", seconds: 1 }, { onprogress });
      assert.equal(said.content[0].text, "awake");
      assert.deepEqual(seen, seen.map((_, at) => at + 1));
      await client.close();
    }
  });

  test("it gets files", async () => {
    for (const [mode] of ERAS) {
      const client = await connected(mode);
      const { content } = await call(client, "shows", { messages: "hi" });
      assert.deepEqual(
        content.map((block) => block.type),
        ["text", "image", "audio", "resource", "resource_link", "text"],
      );
      await client.close();
    }
  });

  test("a call that is left is cancelled", async () => {
    // Not listed, since other tests compare the list, and of its own, since other tests call `sleeps`.
    const name = "left_by_typescript";
    const tool = await post("/assistants", { graph_id: "sleeps", name, metadata: { mcp: { listed: false } } });
    const metadata = { assistant_id: tool.assistant_id };
    const busy = () => post("/threads/count", { metadata, status: "busy" });
    const client = await connected("auto");
    for (const onprogress of [undefined, () => {}]) {
      const leaving = new AbortController();
      const calling = call(client, name, { messages: "hi" }, { signal: leaving.signal, onprogress });
      calling.catch(() => {});
      while ((await busy()) === 0) await new Promise((done) => setTimeout(done, 50));
      leaving.abort();
      await assert.rejects(calling);
      while ((await busy()) > 0) await new Promise((done) => setTimeout(done, 50));
    }
    await client.close();
    await fetch(`${url}/assistants/${tool.assistant_id}`, { method: "DELETE", headers });
  });
});
