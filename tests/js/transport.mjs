// What the client does when a connection breaks. The proxy between breaks each request that bears a mark, once.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { suite, test } from "node:test";
import { Client } from "@langchain/langgraph-sdk";

const apiUrl = process.env.DEPLOYMENT_URL;
const apiKey = process.env.DEPLOYMENT_KEY;
const client = new Client({ apiUrl, apiKey });

suite("transport", { concurrency: 2, timeout: 60_000 }, () => {
  test("a resumable stream goes on after a cut", async () => {
    const { thread_id } = await client.threads.create();
    const stream = client.runs.stream(thread_id, "writes", {
      input: { n: 60, seconds: 0.02 },
      streamMode: ["custom", "values"],
      streamResumable: true,
      metadata: { mark: "cut" },
    });
    const seen = [];
    for await (const part of stream) if (part.event === "custom") seen.push(part.data.i);
    assert.deepEqual(seen, [...Array(60).keys()]);
  });

  test("a run whose answer was lost is made once under its key", async () => {
    const { thread_id } = await client.threads.create();
    const keyed = new Client({ apiUrl, apiKey, defaultHeaders: { "Idempotency-Key": randomUUID() } });
    const create = () => keyed.runs.create(thread_id, "echo", { input: { text: "x" }, metadata: { mark: "hidden" } });
    const run = await create().catch(create); // one line sends it again by itself
    const runs = await client.runs.list(thread_id);
    assert.deepEqual(runs.map((each) => each.run_id), [run.run_id]);
  });
});
