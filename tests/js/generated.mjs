// A client with the types that openapi-typescript generates from the API document.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, writeFile } from "node:fs/promises";
import { suite, test } from "node:test";
import { promisify } from "node:util";
import openapiTS, { astToString } from "openapi-typescript";

const url = process.env.DEPLOYMENT_URL;
const key = process.env.DEPLOYMENT_KEY;
const headers = { "X-Api-Key": key };

const CLIENT = `
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

export async function createThread(baseUrl: string, key: string): Promise<{ id: string; made: unknown }> {
  const client = createClient<paths>({ baseUrl, headers: { "X-Api-Key": key } });
  const { data, error } = await client.POST("/threads", { body: { metadata: { made: "by a generated client" } } });
  if (data === undefined) throw new Error(error.detail);
  const found = await client.GET("/threads/{thread_id}", { params: { path: { thread_id: data.thread_id } } });
  if (found.data === undefined) throw new Error(found.error.detail);
  // @ts-expect-error  the generated types know the fields of a thread
  found.data.no_such_field;
  return { id: found.data.thread_id, made: found.data.metadata["made"] };
}
`;

async function compiled(document, source) {
  const folder = await mkdtemp(`${process.cwd()}/generated-`);
  await writeFile(`${folder}/schema.ts`, astToString(await openapiTS(document)));
  await writeFile(`${folder}/client.ts`, source);
  const tsc = ["node_modules/typescript/bin/tsc", "--strict", "--module", "nodenext", "--target", "es2022"];
  await promisify(execFile)(process.execPath, [...tsc, `${folder}/schema.ts`, `${folder}/client.ts`]).catch((failed) =>
    assert.fail(failed.stdout),
  );
  return import(`${folder}/client.js`);
}

const fetched = async (address) => (await fetch(`${address}/openapi.json`, { headers })).json();

suite("generated", { timeout: 120_000 }, () => {
  test("it creates a thread", async () => {
    const { createThread } = await compiled(await fetched(url), CLIENT);
    const { id, made } = await createThread(url, key);
    assert.match(id, /^[0-9a-f-]{36}$/);
    assert.equal(made, "by a generated client");
  });

  test("the types of the service's document compile", async () => {
    await compiled(await fetched(new URL(url).origin), 'import type { paths } from "./schema.js";\nexport type Paths = paths;');
  });
});
