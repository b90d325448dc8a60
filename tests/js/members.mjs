// What people do with the page of examples/members: `tests/e2e/test_example_page.py` starts it with its deployment's address.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { browser } from "./chromium.mjs";

const { DEPLOYMENT_URL: url } = process.env;
const WAIT = { timeout: 30_000 };

// The page as one person sees it, in a browser of their own.
async function visit() {
  const page = await (await browser.newContext()).newPage();
  const told = [];
  page.on("console", (message) => message.type() === "error" && told.push(message.text()));
  page.on("pageerror", (error) => told.push(String(error)));
  await page.goto(`${url}/`);
  return {
    page, told,
    signIn: async (name, password) => {
      await page.fill("#login [name=name]", name);
      await page.fill("#login [name=password]", password);
      await page.click("#login button");
    },
    ask: async (text) => {
      await page.fill("#ask input", text);
      await page.click("#ask button");
    },
    hears: (text) => page.locator("#messages li.ai", { hasText: text }).waitFor(WAIT),
    conversations: (text) => page.locator("nav li", text && { hasText: text }),
  };
}

suite("members", () => {
  test("a wrong password is refused", async () => {
    const ada = await visit();
    await ada.signIn("ada", "compiler");
    await ada.page.locator("#notice", { hasText: "Name or password are wrong." }).waitFor(WAIT);
    assert.equal(await ada.page.isVisible("main"), false);
  });

  test("an answer streams to whoever is signed in", async () => {
    const ada = await visit();
    await ada.signIn("ada", "engine");
    await ada.ask("good morning");
    await ada.hears('Hello Ada! You said: "good morning". That was your message 1 here.');
    await ada.conversations("good morning").waitFor(WAIT);
    await ada.ask("and again");
    await ada.hears("That was your message 2 here.");
    assert.deepEqual(ada.told, []);
  });

  test("a long word leaves the page as wide as its window", async () => {
    const ada = await visit();
    await ada.signIn("ada", "engine");
    await ada.ask("w".repeat(200));
    await ada.hears("That was your message 1 here.");
    for (const width of [1200, 400]) {
      await ada.page.setViewportSize({ width, height: 800 });
      assert.equal(await ada.page.evaluate(() => document.documentElement.scrollWidth), width);
    }
    await ada.page.locator("#ask button:enabled").waitFor(WAIT);
  });

  test("nobody sees another's conversations", async () => {
    const ada = await visit(), grace = await visit();
    await ada.signIn("ada", "engine");
    await ada.ask("a secret of mine");
    await ada.hears("a secret of mine");
    await grace.signIn("grace", "compiler");
    await grace.ask("who is here?");
    await grace.hears("Hello Grace!");
    await grace.conversations("who is here?").waitFor(WAIT);
    assert.equal(await grace.conversations("a secret of mine").count(), 0);
  });

  test("a conversation is there when one signs in again, and not shown after signing out", async () => {
    const ada = await visit();
    await ada.signIn("ada", "engine");
    await ada.ask("remember this");
    await ada.hears('You said: "remember this". That was your message 1 here.');
    await ada.conversations("remember this").waitFor(WAIT); // they are listed after the answer
    await ada.page.reload(); // at an address that deployments share, the page may keep nothing
    await ada.signIn("ada", "engine");
    await ada.conversations("remember this").locator("button").first().click();
    await ada.page.locator("#messages li.human", { hasText: "remember this" }).waitFor(WAIT);
    await ada.hears("remember this");
    await ada.page.click("#who button");
    await ada.page.locator("#login").waitFor(WAIT);
    assert.equal(await ada.page.locator("#messages li").count(), 0);
  });
});
