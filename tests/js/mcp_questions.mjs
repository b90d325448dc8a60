// Questions of graphs to the TypeScript client of MCP, which answers them through its handler of elicitations.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const url = process.env.DEPLOYMENT_URL;
const headers = { "x-api-key": process.env.DEPLOYMENT_KEY };
const NAME = "test_input_required_result_elicitation";

/** Return a client that gives these answers, one for each question in turn. Without answers it cannot be asked. */
async function connected(answers, options = {}) {
  const messages = [];
  const capabilities = answers === undefined ? {} : { elicitation: {} };
  const client = new Client(
    { name: "test", version: "1" },
    { capabilities, versionNegotiation: { mode: "auto" }, ...options },
  );
  if (answers !== undefined) {
    client.setRequestHandler("elicitation/create", async ({ params }) => {
      messages.push(params.message);
      return answers.shift();
    });
  }
  await client.connect(new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers } }));
  return [client, messages];
}

const accept = (content) => ({ action: "accept", content });
const call = (client, name) => client.callTool({ name, arguments: {} });

suite("mcp questions", () => {
  test("it answers a question", async () => {
    const [client, messages] = await connected([accept({ name: "Alice" })]);
    const { content } = await call(client, NAME);
    assert.equal(content[0].text, "Hello, Alice!");
    assert.deepEqual(messages, ["What is your name?"]);
    await client.close();
  });

  test("it declines a question", async () => {
    const [client] = await connected([{ action: "decline" }]);
    const result = await call(client, NAME);
    assert.equal(result.isError, true);
    assert.equal(result.content[0].text, "The question was declined");
    await client.close();
  });

  test("it answers two questions at once", async () => {
    const [client, messages] = await connected([accept({ name: "a" }), accept({ name: "b" })]);
    const { content } = await call(client, "multi_input");
    assert.deepEqual(JSON.parse(content[0].text).answers.sort(), ["a", "b"]);
    assert.deepEqual(messages.sort(), ["One?", "Two?"]);
    await client.close();
  });

  test("it answers two questions in turn", async () => {
    const [client] = await connected([accept({ name: "Alice" }), accept({ color: "blue" })]);
    const { content } = await call(client, "test_input_required_result_multi_round");
    assert.equal(content[0].text, "Alice likes blue");
    await client.close();
  });

  test("a client without a handler is not asked", async () => {
    const [client] = await connected();
    const { content } = await call(client, NAME);
    assert.match(content[0].text, /__interrupt__/);
    await client.close();
  });
});
