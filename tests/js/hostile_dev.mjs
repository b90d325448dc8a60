// The same project under `runyard dev`, where its pages have the console's origin: tests/e2e/test_hostile_pages.py starts
// it. A page there may do what needs no key; it must never see the key that a person gives the console.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { browser, drawOnly } from "./chromium.mjs";

const { SERVICE_URL: url, DEPLOYMENT_KEY: key } = process.env;
const WAIT = { timeout: 90_000 };

const context = await browser.newContext(); // of all tests, so that the console's files are loaded once
await drawOnly(context, "/page", "/threads/count");
let said;
context.on("console", (message) => said.push(message.text()));

// A tab, and no other; `said` has what it and the tabs that it opens write to their consoles.
async function visit() {
  for (const page of context.pages()) await page.close();
  said = [];
  return { page: await context.newPage(), said };
}

async function useKey(page) {
  await page.getByRole("button", { name: "Use a key" }).click(WAIT);
  await page.getByLabel("API key").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Sign out" }).waitFor(WAIT);
}

async function hears(it, text) {
  const deadline = Date.now() + WAIT.timeout;
  while (!it.said.some((line) => line.includes(text))) {
    assert.ok(Date.now() < deadline, `${text} was not said:\n${it.said.join("\n")}`);
    await it.page.waitForTimeout(50);
  }
}

suite("hostile dev", () => {
  test("a page of the project finds no key in the console's tab", async () => {
    const it = await visit();
    await it.page.goto(`${url}/o/`);
    await useKey(it.page);
    assert.equal(await it.page.evaluate((key) => JSON.stringify([{ ...sessionStorage }, { ...localStorage }]).includes(key), key), false);
    await it.page.goto(`${url}/page`);
    for (const how of ["storage", "frame", "worker", "shared worker"]) await hears(it, ` ${how} `);
    assert.ok(!it.said.some((line) => line.includes(key)), it.said.join("\n"));
    await it.page.goto(`${url}/o/`);
    await it.page.getByRole("button", { name: "Use a key" }).waitFor(WAIT); // it is forgotten
  });

  test("the project has no service worker", async () => {
    const it = await visit();
    await it.page.goto(`${url}/page`);
    await hears(it, "DENIED worker");
    await hears(it, "DENIED narrow worker");
    assert.equal(await it.page.evaluate(async () => (await navigator.serviceWorker.getRegistrations()).length), 0);
    assert.ok(!it.said.includes("LOOT service worker"), it.said.join("\n"));
  });

  test("a page of the project does not hold the window of a console that it opened", async () => {
    const it = await visit();
    await it.page.goto(`${url}/page`);
    const [opened] = await Promise.all([
      context.waitForEvent("page"),
      it.page.evaluate((to) => void (window.held = window.open(to)), `${url}/o/`),
    ]);
    await useKey(opened);
    assert.equal(await it.page.evaluate(() => window.held.closed), true);
    assert.equal(await opened.evaluate(() => window.opener), null);
  });

  test("the docs page runs nothing of the project and calls it without a key", async () => {
    const it = await visit();
    await it.page.goto(`${url}/docs`);
    const page = it.page.locator("rapi-doc").first();
    await page.getByText("Hostile, as Markdown.").first().waitFor(WAIT);
    const answer = it.page.waitForResponse((one) => one.url() === `${url}/threads/count`, WAIT);
    await page.locator("[id='post-/threads/count'] button", { hasText: "TRY" }).click();
    assert.equal((await answer).status(), 200);
    await (await answer).finished();
    await it.page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
    assert.deepEqual(it.said.filter((line) => /^(LOOT|DENIED)/.test(line)), []);
  });
});
