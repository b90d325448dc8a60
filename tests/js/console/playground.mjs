// What people do in the playground, as they would go about it: `tests/e2e/console/test_playground.py` starts it.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { WAIT, accessible, call, row } from "./harness.mjs";

const deployment = process.env.DEPLOYMENT;

const at = (graph, query = "") => `/d/${deployment}/playground/${graph}${query}`;
const held = () => `held-${randomUUID()}`;

// What a graph waits for before it goes on.
const release = (name) => call("PUT", `/d/${deployment}/store/items`, { namespace: ["released"], key: name, value: {} });

async function say(page, text) {
  await page.getByRole("textbox", { name: "Message", exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

const hears = (page, text) => page.locator(".message.ai", { hasText: text }).last().waitFor(WAIT);
const idle = (page) => page.locator(".composer .danger").waitFor({ ...WAIT, state: "detached" });
const lit = (page, node, state) => page.locator(`[data-node='${node}'][data-state=${state}]`).waitFor(WAIT);
const said = async (page) => (await page.locator(".message .md").allTextContents()).map((text) => text.trim());
const threadOf = (page) => page.evaluate(() => new URLSearchParams(location.hash.split("?")[1]).get("thread"));

row("a chat streams, and the node that works is lit", async (open) => {
  const page = await open(at("chat"));
  const name = held();
  await say(page, name);
  await hears(page, "heard: ");
  await lit(page, "answer", "active");
  assert.equal(await page.locator("[data-step=answer]").getAttribute("data-state"), "working");
  await release(name);
  await hears(page, `heard: ${name}.`);
  await idle(page);
  await lit(page, "answer", "done");
  assert.deepEqual(await said(page), [name, `heard: ${name}.`]);
});

row("a reload in the middle rejoins", async (open) => {
  const page = await open(at("chat"));
  const name = held();
  await say(page, name);
  await hears(page, "heard: ");
  const thread = await threadOf(page);
  await page.reload();
  await hears(page, "heard: ");
  await lit(page, "answer", "active");
  assert.equal(await threadOf(page), thread);
  await release(name);
  await hears(page, `heard: ${name}.`);
  await idle(page);
  assert.deepEqual(await said(page), [name, `heard: ${name}.`]);
});

row("a run is stopped, and the thread goes on", async (open) => {
  const page = await open(at("chat"));
  const name = held();
  await say(page, name);
  await hears(page, "heard: ");
  await page.getByRole("button", { name: "Stop" }).click();
  await idle(page);
  await page.locator(".play-stands", { hasText: "Stopped before answer" }).waitFor(WAIT);
  await release(name);
  await page.getByRole("button", { name: "Go on" }).click();
  await hears(page, `heard: ${name}.`);
  await idle(page);
  assert.equal(await page.locator(".play-stands").count(), 0);
});

row("an earlier message is changed and sent again", async (open) => {
  const page = await open(at("chat"));
  for (const text of ["one", "two"]) {
    await say(page, text);
    await hears(page, `heard: ${text}.`);
    await idle(page);
  }
  await page.locator(".message.human").nth(1).getByRole("button", { name: "Edit" }).click();
  await page.getByRole("textbox", { name: "The message, changed" }).fill("three");
  await page.getByRole("button", { name: "Send from here" }).click();
  await hears(page, "heard: three.");
  await idle(page);
  assert.deepEqual(await said(page), ["one", "heard: one.", "three", "heard: three."]);
  await page.locator(".message.human").nth(0).getByRole("button", { name: "Edit" }).click();
  await page.getByRole("textbox", { name: "The message, changed" }).fill("none of these");
  await page.getByRole("button", { name: "Send from here" }).click();
  await hears(page, "heard: none of these.");
  await idle(page);
  assert.deepEqual(await said(page), ["none of these", "heard: none of these."]);
});

row("tools are folded, with what they tell and their result", async (open) => {
  const page = await open(at("helps"));
  const name = held();
  await say(page, `find ${name} nothing`);
  const [first, second] = [page.locator(".tool-call").nth(0), page.locator(".tool-call").nth(1)];
  await page.locator(".tool-call[data-state=failed]").waitFor(WAIT);
  assert.equal(await first.getAttribute("open"), null);
  await first.locator("summary").click();
  await first.locator("pre", { hasText: `looking for ${name}` }).waitFor(WAIT);
  await lit(page, "tools", "active");
  await release(name);
  await hears(page, `so: ${name} is known`);
  await idle(page);
  assert.equal(await first.getAttribute("data-state"), "done");
  await first.locator(".md", { hasText: `${name} is known` }).waitFor(WAIT);
  assert.equal(await second.getAttribute("data-state"), "failed");
  assert.equal(await page.locator(".message.tool").count(), 0);
});

row("a subgraph's messages and steps are shown under it", async (open) => {
  const page = await open(at("researches"));
  const name = held();
  await say(page, name);
  await page.locator(".aside", { hasText: "research › answer" }).locator(".message.ai", { hasText: "heard: " }).waitFor(WAIT);
  await page.locator("[data-step=research] [data-step='research:answer'][data-state=working]").waitFor(WAIT);
  await page.getByRole("button", { name: "▸ research" }).click();
  await lit(page, "research:answer", "active");
  await release(name);
  await hears(page, "notes taken: 2");
  await idle(page);
  assert.equal(await page.locator(".aside").count(), 0);
  await lit(page, "research:answer", "done");
});

row("a form runs a graph, and its JSON goes along", async (open) => {
  const page = await open(at("orders"));
  const form = page.locator(".composer-form");
  await form.getByRole("button", { name: "Both" }).click();
  const json = form.getByRole("textbox", { name: "Input as JSON" });
  await form.locator("[data-field=customer] textarea").fill("Ada");
  await form.locator("[data-field=amount] input").fill("3");
  await form.locator("[data-field=urgent] input").check();
  await form.locator("[data-field=size] select").selectOption({ label: "large" });
  await form.getByRole("button", { name: "Add to colours" }).click();
  await form.getByRole("textbox", { name: "colours 1" }).fill("red");
  await form.getByRole("button", { name: "Add address" }).click();
  await form.locator("[data-field=street] textarea").fill("Main Street");
  const written = JSON.parse(await json.inputValue());
  const { customer, amount, urgent, size, colours, address } = written;
  assert.deepEqual({ customer, amount, urgent, size, colours, address }, {
    customer: "Ada", amount: 3, urgent: true, size: "large", colours: ["red"], address: { street: "Main Street", number: null },
  });
  await json.fill(JSON.stringify({ ...written, customer: "Bea" }));
  assert.equal(await form.locator("[data-field=customer] textarea").inputValue(), "Bea");
  await json.fill("{");
  assert.ok(await page.getByRole("button", { name: "Run", exact: true }).isDisabled());
  await json.fill(JSON.stringify({ ...written, customer: "Cleo" }));
  await page.getByRole("button", { name: "▸ pack" }).click();
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await lit(page, "pack:wrap", "done");
  await lit(page, "rush", "done");
  await idle(page);
  await page.locator(".message.values", { hasText: "plain: 3 large for Cleo" }).waitFor(WAIT);
  await page.locator(".told", { hasText: "Cleo" }).waitFor(WAIT);
});

row("what went wrong is told", async (open) => {
  const page = await open(at("orders"));
  await page.locator(".composer-form").getByRole("button", { name: "JSON" }).click();
  await page.getByRole("textbox", { name: "Input as JSON" }).fill('{"customer": 5}');
  await page.getByRole("button", { name: "Run", exact: true }).click();
  const told = page.locator(".play-error", { hasText: "ValidationError" });
  await told.waitFor(WAIT);
  assert.match(await told.textContent(), /Input should be a valid string/);
  await page.reload();
  await told.waitFor(WAIT);
});

row("two questions are answered, with text and with JSON, one after a reload", async (open) => {
  const page = await open(at("asks_twice"));
  await say(page, "go");
  const questions = page.locator(".question");
  await questions.nth(1).waitFor(WAIT);
  await lit(page, "ask_first", "asking");
  await page.locator(".question", { hasText: "first?" }).getByRole("textbox", { name: "Answer" }).fill("plain words");
  await page.locator(".question", { hasText: "first?" }).getByRole("button", { name: "Answer", exact: true }).click();
  await page.locator(".question", { hasText: "first?" }).waitFor({ ...WAIT, state: "detached" });
  await page.reload();
  const second = page.locator(".question", { hasText: "second?" });
  await second.getByRole("button", { name: "JSON" }).click();
  await second.getByRole("textbox", { name: "Answer as JSON" }).fill('{"a": [1]}');
  await second.getByRole("button", { name: "Answer", exact: true }).click();
  await hears(page, "second: {'a': [1]}");
  await idle(page);
  assert.equal(await questions.count(), 0);
});

const answered = async (page) => {
  await hears(page, "answered: ");
  await idle(page);
  return JSON.parse(await page.locator(".message.ai code").last().textContent());
};
const choose = (page, tool, word) => page.locator(`[data-action=${tool}]`).getByRole("radio", { name: word }).check(WAIT);

row("calls of a turn are decided in the middleware's form", async (open) => {
  const page = await open(at("reviews"));
  await say(page, "go");
  const send = page.getByRole("button", { name: "Send 2 decisions" });
  await choose(page, "pay", "Edit");
  assert.ok(await send.isDisabled());
  await page.locator("[data-action=pay] [data-field=amount] input").fill("30");
  assert.deepEqual(await page.locator("[data-action=write] [role=radiogroup]").getByRole("radio").count(), 2);
  await choose(page, "write", "Respond");
  await page.locator("[data-action=write]").getByRole("textbox", { name: "Response" }).fill("it was written");
  await send.click();
  assert.deepEqual(await answered(page), [
    { type: "edit", edited_action: { name: "pay", args: { to: "Ada", amount: 30 } } },
    { type: "respond", message: "it was written" },
  ]);
  await say(page, "again");
  await page.getByRole("button", { name: "Accept all" }).click(WAIT);
  await page.locator(".message.ai").nth(1).waitFor(WAIT);
  assert.deepEqual(await answered(page), [{ type: "approve" }, { type: "approve" }]);
});

row("one call is rejected in the middleware's form", async (open) => {
  const page = await open(at("reviews_each"));
  await say(page, "go");
  await choose(page, "pay", "Reject");
  await page.locator("[data-action=pay]").getByRole("textbox", { name: /Reason/ }).fill("too dear");
  await page.getByRole("button", { name: "Send decision" }).click();
  assert.deepEqual(await answered(page), { type: "reject", message: "too dear" });
});

row("a letter of the inbox is answered in each way", async (open) => {
  const page = await open(at("inbox"));
  const ways = {
    Accept: { type: "accept", args: null },
    Edit: { type: "edit", args: { action: "pay", args: { to: "Bea", amount: 20 } } },
    Respond: { type: "response", args: "ask later" },
    Ignore: { type: "ignore", args: null },
  };
  for (const [at, [word, answer]] of Object.entries(ways).entries()) {
    await say(page, "go");
    await choose(page, "pay", word);
    if (word === "Edit") await page.locator("[data-action=pay] [data-field=to] textarea").fill("Bea");
    if (word === "Respond") await page.getByRole("textbox", { name: "Response" }).fill("ask later");
    await page.getByRole("button", { name: "Send decision" }).click();
    await page.locator(".message.ai").nth(at).waitFor(WAIT);
    assert.deepEqual(await answered(page), answer);
  }
});

row("an assistant is made, used, and changed", async (open) => {
  const page = await open(at("orders"));
  const name = `Warm ${randomUUID()}`;
  await page.getByRole("button", { name: "New assistant" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("textbox", { name: "Name" }).fill(name);
  await dialog.locator("[data-field=tone] select").selectOption({ label: "warm" });
  await dialog.getByRole("button", { name: "JSON" }).click();
  assert.deepEqual(JSON.parse(await dialog.getByRole("textbox", { name: "Context as JSON" }).inputValue()), { tone: "warm", repeat: 1 });
  await dialog.getByRole("button", { name: "Make assistant" }).click();
  await page.getByRole("combobox", { name: "Assistant" }).locator("option:checked", { hasText: `${name} · v1` }).waitFor({ ...WAIT, state: "attached" });
  await page.locator(".composer-form [data-field=customer] textarea").fill("Ada");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await page.locator(".message.values", { hasText: "warm: 1 small for Ada" }).waitFor(WAIT);
  await idle(page);
  await page.getByRole("button", { name: "Change the assistant" }).click();
  await dialog.locator("[data-field=repeat] input").fill("2");
  await dialog.getByRole("button", { name: /Save as version 2/ }).click();
  await page.getByRole("combobox", { name: "Assistant" }).locator("option:checked", { hasText: `${name} · v2` }).waitFor({ ...WAIT, state: "attached" });
});

const HOSTILE = [
  "<script>window.taken = 1</script>", '<img src=x onerror="window.taken = 2">', "[one](javascript:window.taken=3)",
  "![two](https://elsewhere.invalid/pixel.png)", '<a href="javascript:window.taken=4">three</a>', "<svg onload=window.taken=5>",
  "[four](data:text/html,<script>window.taken=6</script>)", "<iframe srcdoc='<script>parent.taken=7</script>'></iframe>",
  '<style>body{display:none}</style>', "\u001b[31mred\u001b[0m",
].join("\n\n");

row("markup in messages stays inert", async (open) => {
  const page = await open(at("chat"));
  const elsewhere = [];
  page.on("request", (request) => request.url().includes("elsewhere") && elsewhere.push(request.url()));
  await say(page, HOSTILE);
  await page.locator(".message.ai", { hasText: "three" }).waitFor(WAIT);
  await idle(page);
  for (const link of await page.locator(".chat a").all()) await link.evaluate((each) => each.removeAttribute("target"));
  for (const text of ["one", "three", "four"]) await page.locator(".chat").getByText(text, { exact: true }).first().click({ timeout: 1000 }).catch(() => {});
  assert.equal(await page.evaluate(() => window.taken), undefined);
  assert.equal(await page.locator(".chat :is(script, img, svg, iframe, style, [onerror], [onload])").count(), 0);
  const links = await page.locator(".chat a[href]").evaluateAll((all) => all.map((each) => each.protocol));
  assert.deepEqual([...new Set(links)], ["https:"]);
  assert.ok(await page.locator(".chat").isVisible());
  assert.deepEqual(elsewhere, []);
});

row("of a stream of 500 tokens a second only what grows is drawn again", async (open) => {
  const page = await open(at("pours"));
  await say(page, "200 500");
  await hears(page, "the end");
  await idle(page);
  await page.evaluate(() => {
    window.seen = { changes: 0, long: [] };
    const first = document.querySelector(".message.ai");
    new MutationObserver((changes) => { window.seen.changes += changes.length; }).observe(first, { subtree: true, childList: true, attributes: true, characterData: true });
    new PerformanceObserver((list) => window.seen.long.push(...list.getEntries().map((entry) => Math.round(entry.duration)))).observe({ entryTypes: ["longtask"] });
  });
  await say(page, "2500 500");
  await page.locator(".message.ai").nth(1).locator(".md", { hasText: "the end" }).waitFor(WAIT);
  await idle(page);
  const text = (await said(page)).at(-1);
  for (const word of ["word0 ", "word1250 ", "word2498 ", "the end"]) assert.ok(text.includes(word), word);
  const { changes, long } = await page.evaluate(() => window.seen);
  assert.equal(changes, 0);
  console.error(`# 2,500 tokens: ${long.length} tasks above 50 ms, the longest ${Math.max(0, ...long)} ms`);
});

for (const width of [1280, 400]) {
  row(`at ${width} pixels a form, a question and a chat are accessible`, async (open) => {
    const page = await open(at("reviews"), { width });
    await say(page, "go");
    await choose(page, "pay", "Edit");
    await accessible(page);
    await page.goto("about:blank");
    const form = await open(at("orders"), { width });
    await form.locator(".composer-form").getByRole("button", { name: "Both" }).click();
    await accessible(form);
    assert.equal(await form.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true);
    await form.getByRole("button", { name: "New assistant" }).click();
    await form.getByRole("dialog").getByRole("textbox", { name: "Name" }).waitFor(WAIT);
    await accessible(form);
    const chat = await open(at("helps"), { width });
    await say(chat, "find nothing");
    await hears(chat, "so: ");
    await idle(chat);
    await chat.locator(".tool-call summary").click();
    await chat.locator("[data-step=tools] .step-head").click();
    await accessible(chat);
    assert.equal(await chat.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true);
  });
}
