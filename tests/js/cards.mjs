// Components of a deployment in a page: `tests/release/test_components.py` starts it with the deployment's address.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, suite, test } from "node:test";
import { build } from "esbuild";
import { browser } from "./chromium.mjs";

const { DEPLOYMENT_URL: url, DEPLOYMENT_KEY: key } = process.env;
const HTML = '<!doctype html><meta charset="utf-8"><title>Cards</title><div id="root"></div><script type="module" src="/page.js"></script>';
const WAIT = { timeout: 60_000 };
let server, assistant;

before(async () => {
  const bundle = await build({ entryPoints: ["cards.jsx"], bundle: true, jsx: "automatic", format: "esm", write: false, logLevel: "error" });
  server = createServer((request, response) => {
    const isScript = request.url === "/page.js";
    response.setHeader("Content-Type", isScript ? "text/javascript" : "text/html");
    response.end(isScript ? bundle.outputFiles[0].text : HTML);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const headers = { "Content-Type": "application/json", "X-Api-Key": key };
  const answer = await fetch(`${url}/assistants/search`, { method: "POST", headers, body: "{}" });
  [{ assistant_id: assistant }] = await answer.json();
});

after(() => server?.close());

// Ask in a new page, and return its component, and the requests for components with and without a key.
async function visit(assistantId) {
  const page = await (await browser.newContext()).newPage();
  const errors = [], withKey = [], withoutKey = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => {
    if (request.url().startsWith(`${url}/ui/`) && request.method() !== "OPTIONS") {
      (request.headers()["x-api-key"] ? withKey : withoutKey).push(`${request.method()} ${request.url().split(".").at(-1)}`);
    }
  });
  await page.goto(`http://127.0.0.1:${server.address().port}/?${new URLSearchParams({ url, key, assistant: assistantId })}`);
  await page.click("text=Ask");
  const weather = page.locator(".card .weather");
  await weather.waitFor(WAIT);
  return { page, weather, errors, withKey, withoutKey };
}

suite("cards", () => {
  test("a component is shown with its styles, its state and the page's stream", async () => {
    const { weather, errors, withKey, withoutKey } = await visit("forecast");
    assert.match(await weather.textContent(), /Sunny in Lyon, 2 messages/);
    await weather.evaluate((element) => new Promise((done) => {
      const look = () => (getComputedStyle(element).color === "rgb(1, 2, 3)" ? done() : setTimeout(look, 50));
      look();
    }));
    assert.equal(await weather.evaluate((element) => getComputedStyle(element).textDecorationLine), "underline");
    await weather.locator("text=Like").click();
    await weather.and(weather.page().locator("[data-likes='1']")).waitFor(WAIT);
    assert.deepEqual(errors, []);
    assert.equal(withKey.length, 1);
    assert.ok(withKey[0].startsWith("POST "));
    assert.deepEqual(withoutKey.sort(), ["GET css", "GET js"]);
  });

  test("an assistant has the components of its graph", async () => {
    const { weather, errors } = await visit(assistant);
    assert.match(await weather.textContent(), /Sunny in Lyon/);
    assert.deepEqual(errors, []);
  });
});
