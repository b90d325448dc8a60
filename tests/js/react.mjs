// What people do with the page of examples/react: `tests/release/test_react_page.py` starts it with the page's address.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { browser } from "./chromium.mjs";

const { DEPLOYMENT_URL: url, PICTURE } = process.env;
const WAIT = { timeout: 60_000 };

// The page as one person sees it, with its errors and the headers of its requests.
async function visit() {
  const page = await (await browser.newContext()).newPage();
  const errors = [], headers = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => headers.push(...Object.keys(request.headers())));
  await page.goto(url);
  return {
    page, errors, headers,
    say: async (text) => {
      await page.fill("input", text);
      await page.click("text=Send");
    },
    hears: (text) => page.locator("li.ai", { hasText: text }).waitFor(WAIT),
    rests: () => page.getByRole("button", { name: "Send", exact: true }).waitFor(WAIT),
  };
}

suite("react", () => {
  test("an answer streams, and is there when the page is loaded again", async () => {
    const it = await visit();
    await it.say("good morning");
    await it.hears('You said: "good morning".');
    await it.rests();
    await it.page.reload();
    await it.hears('You said: "good morning".');
    assert.equal(await it.page.locator("li").count(), 2);
    assert.deepEqual(it.errors, []);
    assert.ok(!it.headers.includes("x-api-key"), "the key stays with the server");
  });

  test("a question is answered", async () => {
    const it = await visit();
    await it.say("Send a letter to Ada");
    await it.page.locator(".question", { hasText: "May I do this: Send a letter to Ada" }).waitFor(WAIT);
    if (PICTURE) await it.page.screenshot({ path: PICTURE });
    await it.page.click("text=Approve");
    await it.hears("Done, I have sent it.");
    await it.rests();
    assert.equal(await it.page.locator(".question").count(), 0);
    assert.deepEqual(it.errors, []);
  });

  test("a question is declined after the page is loaded again", async () => {
    const it = await visit();
    await it.say("Send a letter to Grace");
    await it.page.locator(".question").waitFor(WAIT);
    await it.page.reload();
    await it.page.locator(".question", { hasText: "Grace" }).waitFor(WAIT);
    await it.page.click("text=Decline");
    await it.hears("I have sent nothing.");
  });

  test("a new conversation begins empty", async () => {
    const it = await visit();
    await it.say("hello");
    await it.hears('You said: "hello".');
    await it.rests();
    await it.page.click("text=New conversation");
    await it.page.locator("li").first().waitFor({ ...WAIT, state: "detached" });
    await it.say("hello again");
    await it.hears('You said: "hello again".');
    assert.equal(await it.page.locator("li").count(), 2);
  });
});
