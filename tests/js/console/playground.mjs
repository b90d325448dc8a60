// The playground: graphs run by hand, in a chat and with forms, and what they ask.

import { api, assert, scenario } from "./harness.mjs";

const at = (name, graph) => `/d/${name}/playground/${graph}`;

// What a graph waits for before it goes on.
const release = (name, held) => api("PUT", `/d/${name}/store/items`, { namespace: ["released"], key: held, value: {} });

async function say(page, text) {
  await page.getByRole("textbox", { name: "Message", exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

const hears = (page, text) => page.locator(".message.ai", { hasText: text }).last().waitFor();
const idle = (page) => page.getByRole("button", { name: "Stop", exact: true }).waitFor({ state: "detached" });
const lit = (page, node, state) => page.locator(`[data-node='${node}'][data-state=${state}]`).waitFor();
const said = async (page) => (await page.locator(".message .md").allTextContents()).map((text) => text.trim());
const threadOf = (page) => new URLSearchParams(page.url().split("?")[1]).get("thread");
const holds = async (box, text) => box.page().waitForFunction(([found, wanted]) => found.value.includes(wanted), [await box.elementHandle(), text]);
const run = (page) => page.getByRole("button", { name: "Run", exact: true });

async function change(page, number, text) {
  await page.locator(".message.human").nth(number).getByRole("button", { name: "Edit" }).click();
  await page.getByRole("textbox", { name: "Edited message" }).fill(text);
  await page.getByRole("button", { name: "Send from here" }).click();
}

scenario("a chat streams, is rejoined, stopped, and goes on", async ({ page, open, unique, check, deployments: { chatroom } }) => {
  const held = unique("held"), other = unique("held");
  await open(at(chatroom, "chat"));
  await say(page, held);
  await hears(page, "heard: ");
  await lit(page, "answer", "active");
  await page.locator("[data-step=answer][data-state=working]").waitFor();
  const thread = threadOf(page);
  await page.reload();
  await hears(page, "heard: ");
  await lit(page, "answer", "active");
  assert.equal(threadOf(page), thread);
  await check();
  await release(chatroom, held);
  await hears(page, `heard: ${held}.`);
  await idle(page);
  await lit(page, "answer", "done");
  assert.deepEqual(await said(page), [held, `heard: ${held}.`]);

  await say(page, other);
  await page.locator(".message.ai").nth(1).waitFor();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await idle(page);
  await page.locator(".play-stands", { hasText: "Stopped before answer" }).waitFor();
  await release(chatroom, other);
  await page.getByRole("button", { name: "Continue" }).click();
  await hears(page, `heard: ${other}.`);
  await idle(page);
  assert.equal(await page.locator(".play-stands").count(), 0);
});

scenario("earlier messages are changed and sent again", async ({ page, open, deployments: { chatroom } }) => {
  await open(at(chatroom, "chat"));
  for (const text of ["one", "two"]) {
    await say(page, text);
    await hears(page, `heard: ${text}.`);
    await idle(page);
  }
  await change(page, 1, "three");
  await hears(page, "heard: three.");
  await idle(page);
  assert.deepEqual(await said(page), ["one", "heard: one.", "three", "heard: three."]);
  await change(page, 0, "none of these");
  await hears(page, "heard: none of these.");
  await idle(page);
  assert.deepEqual(await said(page), ["none of these", "heard: none of these."]);
  await page.getByRole("button", { name: "New thread" }).click();
  await page.getByRole("heading", { name: "Send a message" }).waitFor();
  assert.equal(threadOf(page), null);
  await page.goBack();
  await hears(page, "heard: none of these.");
});

scenario("tools are folded, subgraphs are shown under their node", async ({ page, open, unique, check, deployments: { chatroom } }) => {
  const held = unique("held"), other = unique("held");
  await open(at(chatroom, "helps"));
  await say(page, `find ${held} nothing`);
  const first = page.locator(".tool-call").first();
  await page.locator(".tool-call[data-state=failed]").waitFor();
  assert.equal(await first.getAttribute("open"), null);
  await first.locator("summary").click();
  await first.locator("pre", { hasText: `looking for ${held}` }).waitFor();
  await lit(page, "tools", "active");
  await release(chatroom, held);
  await hears(page, `so: ${held} is known`);
  await idle(page);
  await first.locator(".md", { hasText: `${held} is known` }).waitFor();
  assert.deepEqual(await page.locator(".tool-call").evaluateAll((all) => all.map((each) => each.dataset.state)), ["done", "failed"]);
  assert.equal(await page.locator(".message.tool").count(), 0);
  await page.locator("[data-step=tools] .step-head").first().click();
  await check();

  await open(at(chatroom, "researches"));
  await say(page, other);
  await page.locator(".aside", { hasText: "research › answer" }).locator(".message.ai", { hasText: "heard: " }).waitFor();
  await page.locator("[data-step=research] [data-step='research:answer'][data-state=working]").waitFor();
  await page.getByRole("button", { name: "▸ research" }).click();
  await lit(page, "research:answer", "active");
  await release(chatroom, other);
  await hears(page, "notes taken: 2");
  await idle(page);
  assert.equal(await page.locator(".aside").count(), 0);
  await lit(page, "research:answer", "done");
});

scenario("a form runs a graph, its JSON goes along, and what went wrong is told", async ({ page, open, allow, check, deployments: { chatroom } }) => {
  await open(at(chatroom, "orders"));
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
  await holds(json, "Main Street");
  const written = JSON.parse(await json.inputValue());
  assert.deepEqual(written, {
    customer: "Ada", amount: 3, weight: null, urgent: true, size: "large", colours: ["red"],
    address: { street: "Main Street", number: null }, extra: {}, steps: [],
  });
  await json.fill(JSON.stringify({ ...written, customer: "Bea" }));
  await holds(form.locator("[data-field=customer] textarea"), "Bea");
  await json.fill("{");
  await page.getByRole("button", { name: "Run", exact: true, disabled: true }).waitFor();
  await check();
  await json.fill(JSON.stringify({ ...written, customer: "Cleo" }));
  await page.getByRole("button", { name: "▸ pack" }).click();
  await run(page).click();
  await lit(page, "pack:wrap", "done");
  await lit(page, "rush", "done");
  await idle(page);
  await page.locator(".message.values", { hasText: "plain: 3 large for Cleo" }).waitFor();
  await page.locator(".told", { hasText: "Cleo" }).waitFor();
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));

  allow(/424/); // the graph cannot read what it was given
  await page.getByRole("button", { name: "New thread" }).click();
  await json.fill('{"customer": 5}');
  await run(page).click();
  const told = page.locator(".play-error", { hasText: /ValidationError|ZodError/ });
  await told.waitFor();
  assert.match(await told.textContent(), /valid string|expected string/);
  await page.reload();
  await told.waitFor();
});

scenario("two questions are answered, with text and with JSON, one after a reload", async ({ page, open, check, deployments: { chatroom } }) => {
  await open(at(chatroom, "asks_twice"));
  await say(page, "go");
  const [first, second] = ["first?", "second?"].map((text) => page.locator(".question", { hasText: text }));
  await second.waitFor();
  await lit(page, "ask_first", "asking");
  await check();
  await first.getByRole("textbox", { name: "Answer" }).fill("plain words");
  await first.getByRole("button", { name: "Answer", exact: true }).click();
  await first.waitFor({ state: "detached" });
  await second.waitFor();
  await page.reload();
  await second.getByRole("button", { name: "JSON" }).click();
  await second.getByRole("textbox", { name: "Answer as JSON" }).fill('{"a": [1]}');
  await second.getByRole("button", { name: "Answer", exact: true }).click();
  await hears(page, /second: \{.a.: ?\[1\]\}/);
  await idle(page);
  assert.equal(await page.locator(".question").count(), 0);
});

const choose = (page, tool, word) => page.locator(`[data-action=${tool}]`).getByRole("radio", { name: word }).check();

// What the graph says it was answered, in its message of that number.
async function answered(page, number) {
  await page.locator(".message.ai").nth(number).waitFor();
  await idle(page);
  return JSON.parse(await page.locator(".message.ai code").nth(number).textContent());
}

scenario("calls are decided in the middleware's form, all of a turn and one by one", async ({ page, open, check, deployments: { chatroom } }) => {
  await open(at(chatroom, "reviews"));
  await say(page, "go");
  await choose(page, "pay", "Edit");
  await page.getByRole("button", { name: "Send 2 decisions", disabled: true }).waitFor();
  await page.locator("[data-action=pay] [data-field=amount] input").fill("30");
  assert.equal(await page.locator("[data-action=write]").getByRole("radio").count(), 2); // what it allows
  await choose(page, "write", "Respond");
  await page.locator("[data-action=write]").getByRole("textbox", { name: "Response" }).fill("it was written");
  await check();
  await page.getByRole("button", { name: "Send 2 decisions" }).click();
  assert.deepEqual(await answered(page, 0), [
    { type: "edit", edited_action: { name: "pay", args: { to: "Ada", amount: 30 } } },
    { type: "respond", message: "it was written" },
  ]);
  await say(page, "again");
  await page.getByRole("button", { name: "Accept all" }).click();
  assert.deepEqual(await answered(page, 1), [{ type: "approve" }, { type: "approve" }]);

  await open(at(chatroom, "reviews_each"));
  await say(page, "go");
  await choose(page, "pay", "Reject");
  await page.locator("[data-action=pay]").getByRole("textbox", { name: /Reason/ }).fill("too dear");
  await page.getByRole("button", { name: "Send decision" }).click();
  assert.deepEqual(await answered(page, 0), { type: "reject", message: "too dear" });
});

scenario("a letter of the inbox is answered in each way", async ({ page, open, deployments: { chatroom } }) => {
  await open(at(chatroom, "inbox"));
  const ways = {
    Accept: { type: "accept", args: null },
    Edit: { type: "edit", args: { action: "pay", args: { to: "Bea", amount: 20 } } },
    Respond: { type: "response", args: "ask later" },
    Ignore: { type: "ignore", args: null },
  };
  for (const [number, [word, answer]] of Object.entries(ways).entries()) {
    await say(page, "go");
    await choose(page, "pay", word);
    if (word === "Edit") await page.locator("[data-action=pay] [data-field=to] textarea").fill("Bea");
    if (word === "Respond") await page.getByRole("textbox", { name: "Response" }).fill("ask later");
    await page.getByRole("button", { name: "Send decision" }).click();
    assert.deepEqual(await answered(page, number), answer);
  }
});

scenario("an assistant is made, used, and changed", async ({ page, open, unique, check, deployments: { chatroom } }) => {
  const name = unique("Warm");
  const chosen = (version) => page.getByRole("combobox", { name: "Assistant" }).locator("option:checked", { hasText: `${name} · v${version}` }).waitFor({ state: "attached" });
  await open(at(chatroom, "orders"));
  await page.getByRole("button", { name: "New assistant" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("textbox", { name: "Name" }).fill(name);
  await dialog.locator("[data-field=tone] select").selectOption({ label: "warm" });
  await check();
  await dialog.getByRole("button", { name: "JSON" }).click();
  const json = dialog.getByRole("textbox", { name: "Context as JSON" });
  await holds(json, "warm");
  assert.deepEqual(JSON.parse(await json.inputValue()), { tone: "warm", repeat: 1 });
  await dialog.getByRole("button", { name: "Create assistant" }).click();
  await chosen(1);
  await page.locator(".composer-form [data-field=customer] textarea").fill("Ada");
  await run(page).click();
  await page.locator(".message.values", { hasText: "warm: 1 small for Ada" }).waitFor();
  await idle(page);
  await page.getByRole("button", { name: "Change the assistant" }).click();
  await dialog.locator("[data-field=repeat] input").fill("2");
  await dialog.getByRole("button", { name: "Save as a new version" }).click();
  await chosen(2);
});

scenario("who may only read is shown a thread, and nothing to send", async ({ page, open, keyOf, deployments: { chatroom } }) => {
  const { thread_id: thread } = await api("POST", `/d/${chatroom}/threads`, {});
  await api("POST", `/d/${chatroom}/threads/${thread}/runs/wait`, { assistant_id: "chat", input: { messages: "hello" } });
  await open(`${at(chatroom, "chat")}?thread=${thread}`, { key: await keyOf("read") });
  await hears(page, "heard: hello.");
  await page.getByText("Your role can read this page").waitFor();
  assert.equal(await page.getByRole("button", { name: /Send|Edit|New assistant|Change/ }).count(), 0);
});

const HOSTILE = [
  "<script>window.taken = 1</script>", '<img src=x onerror="window.taken = 2">', "[one](javascript:window.taken=3)",
  "![two](https://elsewhere.invalid/pixel.png)", '<a href="javascript:window.taken=4">three</a>', "<svg onload=window.taken=5>",
  "[four](data:text/html,<script>window.taken=6</script>)", "<iframe srcdoc='<script>parent.taken=7</script>'></iframe>",
  "<style>body{display:none}</style>", "\u001b[31mred\u001b[0m", "not \u202ewhat it says", "![five](data:image/svg+xml,%3Csvg%20onload=window.taken=8%3E)",
].join("\n\n");

scenario("markup in messages stays inert", async ({ page, open, deployments: { chatroom } }) => {
  await open(at(chatroom, "chat"));
  await say(page, HOSTILE);
  await hears(page, "three");
  await idle(page);
  for (const text of ["one", "four", "five"]) await page.locator(".message.ai").getByText(text, { exact: true }).click();
  assert.equal(await page.evaluate(() => window.taken), undefined);
  assert.equal(await page.locator(".chat :is(script, img, svg, iframe, style, [onerror], [onload])").count(), 0);
  const links = await page.locator(".chat a[href]").evaluateAll((all) => all.map((each) => `${each.protocol} ${each.rel}`));
  assert.deepEqual([...new Set(links)], ["https: noopener noreferrer nofollow"]);
  assert.doesNotMatch(await page.locator(".chat").innerText(), /[\u001b\u202a-\u202e\u2066-\u2069]/);
  assert.ok(await page.locator(".message.ai").isVisible());
});

scenario("of a stream of 500 tokens a second only what grows is drawn again", async ({ page, open, deployments: { chatroom } }) => {
  await open(at(chatroom, "pours"));
  await say(page, "100 500");
  await hears(page, "the end");
  await idle(page);
  await page.evaluate(() => {
    window.changes = 0;
    const watcher = new MutationObserver((changes) => { window.changes += changes.length; });
    watcher.observe(document.querySelector(".message.ai"), { subtree: true, childList: true, attributes: true, characterData: true });
  });
  await say(page, "2000 500");
  await page.locator(".message.ai").nth(1).locator(".md", { hasText: "the end" }).waitFor();
  await idle(page);
  const text = (await said(page)).at(-1);
  for (const word of ["word0 ", "word1250 ", "word1998 ", "1999", "the end"]) assert.ok(text.includes(word), word);
  assert.equal(await page.evaluate(() => window.changes), 0);
});
