// The console's scripts mean the same with and without the comments that the service leaves out.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { suite, test } from "node:test";
import { transform } from "esbuild";

const pairs = JSON.parse(await readFile(process.env.PAIRS, "utf8"));

suite("stripped", () => {
  test("every script means the same", async () => {
    const minified = async (text) => (await transform(text, { loader: "js", minify: true, legalComments: "none" })).code;
    for (const [name, source, sent] of pairs) assert.equal(await minified(sent), await minified(source), name);
  });
});
