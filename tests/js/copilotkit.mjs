// What people do with the page of examples/copilotkit: `tests/release/test_ag_ui_clients.py` starts it.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { browser } from "./chromium.mjs";

const { DEPLOYMENT_URL: url, PICTURE } = process.env;
const WAIT = { timeout: 60_000 };

// The page as one person sees it, with its errors.
async function visit() {
  const page = await (await browser.newContext()).newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(url);
  return {
    page, errors,
    // The page takes no message before it has reached the runtime.
    say: async (text) => {
      for (let left = 30; ; left--) {
        await page.locator("textarea").fill(text);
        await page.locator("textarea").press("Enter");
        const sent = page.locator(".copilotKitUserMessage", { hasText: text });
        if (await sent.waitFor({ timeout: 2_000 }).then(() => true, () => false)) return;
        assert.ok(left > 0, "the message was not sent");
      }
    },
    hears: (text) => page.getByText(text).first().waitFor(WAIT),
  };
}

suite("copilotkit", { timeout: 120_000 }, () => {
  test("an answer streams", async () => {
    const it = await visit();
    await it.say("good morning");
    await it.hears('You said: "good morning".');
    assert.deepEqual(it.errors, []);
  });

  test("the agent uses a tool of the page", async () => {
    const it = await visit();
    await it.say("Paint lightblue");
    await it.hears("Done. The page says: The page is lightblue now");
    const colour = await it.page.locator("main").evaluate((main) => getComputedStyle(main).backgroundColor);
    assert.equal(colour, "rgb(173, 216, 230)");
    assert.deepEqual(it.errors, []);
  });

  test("a question is approved, and the state of the agent is shown", async () => {
    const it = await visit();
    await it.say("Order tea");
    await it.hears("May I order tea?");
    if (PICTURE) await it.page.screenshot({ path: PICTURE });
    await it.page.getByText("Approve").click();
    await it.hears("I have ordered tea.");
    await it.page.locator("aside li", { hasText: "tea" }).waitFor(WAIT);
    await it.say("Order coffee");
    await it.page.getByText("Decline").click();
    await it.hears("All right, no coffee.");
    assert.equal(await it.page.locator("aside li").count(), 1);
    assert.deepEqual(it.errors, []);
  });
});
