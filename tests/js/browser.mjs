// What people do with a chat in a browser, once with each hook: `tests/e2e/test_browser.py` starts it with a deployment's
// address. A row that fails leaves a screenshot and the page's console in ARTIFACTS.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { mkdir, writeFile } from "node:fs/promises";
import { after, before, suite, test } from "node:test";
import { build } from "esbuild";
import { browser } from "./chromium.mjs";

const { DEPLOYMENT_URL: url, DEPLOYMENT_KEY: key, ARTIFACTS: artifacts, HOOK: hook, TRANSPORT: transport } = process.env;
const HTML = '<!doctype html><meta charset="utf-8"><title>Chat</title><div id="root"></div><script type="module" src="/page.js"></script>';
const WAIT = { timeout: 30_000 };

const context = await browser.newContext();
let server, origin;

before(async () => {
  const bundle = await build({ entryPoints: ["page.jsx"], bundle: true, jsx: "automatic", format: "esm", write: false, logLevel: "error" });
  const script = bundle.outputFiles[0].text;
  server = createServer((request, response) => {
    const isScript = request.url === "/page.js";
    response.setHeader("Content-Type", isScript ? "text/javascript" : "text/html");
    response.end(isScript ? script : HTML);
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  origin = `http://127.0.0.1:${server.address().port}`;
});

after(() => server?.close());

// What a graph waits for before it goes on.
async function release(name) {
  const body = JSON.stringify({ namespace: ["released"], key: name, value: {} });
  const headers = { "Content-Type": "application/json", "X-Api-Key": key };
  const answer = await fetch(`${url}/store/items`, { method: "PUT", headers, body });
  assert.ok(answer.ok, await answer.text());
}

const held = () => `held-${randomUUID()}`;

// A page with a chat of a graph; `sent` are the headers of its requests to the deployment.
async function chat(graph, thread, more) {
  const page = await context.newPage();
  const told = [], sent = [];
  page.on("console", (message) => told.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => told.push(String(error)));
  page.on("request", (request) => request.url().startsWith(url) && sent.push(request));
  page.on("response", (response) => response.status() >= 400 && told.push(`${response.status()} ${response.url()}`));
  const query = new URLSearchParams({ url, key, graph, hook, ...(thread && { thread }), ...(transport && { transport }), ...more });
  await page.goto(`${origin}/?${query}`);
  return {
    page, told, sent,
    messages: (type) => page.locator(type ? `li[data-type=${type}] span` : "li span"),
    say: async (text) => {
      await page.fill("input", text);
      await page.click("text=Send");
    },
    hears: (text) => page.locator("li span", { hasText: text }).waitFor(WAIT),
    state: (name) => page.locator("#state", { hasText: name }).waitFor(WAIT),
    queue: (...texts) =>
      page.waitForFunction((wanted) => {
        const queued = [...document.querySelectorAll(".queued i")].map((each) => each.textContent);
        return JSON.stringify(queued) === JSON.stringify(wanted);
      }, texts, WAIT),
    tool: (state, text) => page.locator(`.tool[data-state=${state}]`, { hasText: text }).waitFor(WAIT),
    other: (name, status) => page.locator(`section[data-name=${name}][data-status=${status}]`),
    thread: async () => {
      await page.waitForFunction(() => document.querySelector("#thread").textContent !== "none");
      return page.textContent("#thread");
    },
  };
}

const row = (name, run) =>
  test(name, async () => {
    const open = [];
    try {
      await run(async (...given) => {
        open.push(await chat(...given));
        return open.at(-1);
      });
    } catch (error) {
      await mkdir(artifacts, { recursive: true });
      for (const [number, { page, told }] of open.entries()) {
        const name_of = `${artifacts}/${hook}-${name.replaceAll(" ", "-")}-${number}`;
        await page.screenshot({ path: `${name_of}.png` });
        await writeFile(`${name_of}.txt`, told.join("\n"));
        error.stack += `\n${name_of}.png\n${told.slice(-20).join("\n")}`;
      }
      throw error;
    } finally {
      for (const { page } of open) await page.close();
    }
  });

const newer = (name, run) => hook === "new" && row(name, run); // what the older hook does not do

const texts = (locator) => locator.allTextContents();

// Three messages sent while a run works, one of them taken back; its name.
async function waiting(it) {
  const name = held();
  await it.say(name);
  await it.hears("heard: ");
  for (const [number, text] of ["second", "third", "fourth"].entries()) {
    await it.say(text);
    await it.queue(...["second", "third", "fourth"].slice(0, number + 1));
  }
  await it.page.locator(".queued", { hasText: "third" }).locator("text=Drop").click(WAIT);
  await it.queue("second", "fourth");
  assert.deepEqual(await texts(it.messages("human")), [name]);
  return name;
}

// They have been answered one after the other.
async function told(it, name) {
  await it.hears("heard: fourth.");
  await it.state("ready");
  await it.queue();
  assert.deepEqual(await texts(it.messages()), [
    ...[name, `heard: ${name}.`],
    ...["second", "heard: second."],
    ...["fourth", "heard: fourth."],
  ]);
}

suite("chat", () => {
  row("it streams", async (open) => {
    const it = await open("chat");
    await it.say("slowly hello");
    await it.hears("hello 0 1 2");
    assert.equal(await it.page.textContent("#state"), "busy");
    await it.hears("24.");
    await it.state("ready");
    const [mine, theirs] = await texts(it.messages());
    assert.equal(mine, "slowly hello");
    assert.match(theirs, /^heard: slowly hello 0 1 .* 24\.$/);
  });

  row("it stops", async (open) => {
    const it = await open("chat");
    await it.say("slowly hello");
    await it.hears("hello 0 1 2");
    await it.page.click("text=Stop");
    await it.state("ready");
    await it.say("again");
    await it.hears("heard: again.");
    await it.state("ready");
  });

  row("it is asked and answers", async (open) => {
    const it = await open("approves");
    await it.say("may I");
    await it.page.locator("#question", { hasText: "Answer this?" }).waitFor(WAIT);
    await it.page.click("text=Yes");
    await it.hears("decided: yes");
    await it.state("ready");
    assert.equal(await it.page.locator("#question").count(), 0);
  });

  row("it is reloaded while it is asked", async (open) => {
    const it = await open("approves");
    await it.say("may I");
    await it.page.locator("#question").waitFor(WAIT);
    await it.page.reload();
    await it.page.locator("#question", { hasText: "Answer this?" }).waitFor(WAIT);
    await it.page.click("text=Yes");
    await it.hears("decided: yes");
  });

  row("an earlier message is changed", async (open) => {
    const it = await open("chat");
    await it.say("one");
    await it.hears("heard: one.");
    await it.state("ready");
    await it.say("two");
    await it.hears("heard: two.");
    await it.state("ready");
    await it.page.locator("li[data-type=human]").nth(1).locator("text=Edit").click(WAIT);
    await it.hears("heard: changed.");
    await it.state("ready");
    assert.deepEqual(await texts(it.messages("human")), ["one", "changed"]);
    assert.deepEqual(await texts(it.messages("ai")), ["heard: one.", "heard: changed."]);
  });

  row("it is reloaded in the middle", async (open) => {
    const it = await open("chat");
    await it.say("slowly hello");
    await it.hears("hello 0 1 2");
    await it.thread();
    await it.page.reload();
    await it.hears("hello 0 1 2");
    await it.hears("24.");
    await it.state("ready");
    assert.equal(await it.messages("ai").count(), 1);
  });

  row("threads are switched", async (open) => {
    const it = await open("chat");
    await it.say("first");
    await it.hears("heard: first.");
    await it.state("ready");
    const first = await it.thread();
    await it.page.click("text=New");
    await it.page.waitForFunction(() => document.querySelectorAll("li").length === 0);
    await it.say("second");
    await it.hears("heard: second.");
    await it.state("ready");
    assert.notEqual(await it.thread(), first);
    assert.equal(await it.messages().count(), 2);
    const other = await open("chat", first);
    await other.hears("heard: first.");
    assert.equal(await other.messages().count(), 2);
  });

  newer("another tab answers", async (open) => {
    const it = await open("approves");
    await it.say("may I");
    await it.page.locator("#question").waitFor(WAIT);
    const other = await open("approves", await it.thread());
    await other.page.locator("#question", { hasText: "Answer this?" }).waitFor(WAIT);
    await other.page.click("text=Yes");
    await other.hears("decided: yes");
    await it.hears("decided: yes");
    await it.page.locator("#question").waitFor({ ...WAIT, state: "detached" });
  });

  row("a tool is shown while it runs and then with its result", async (open) => {
    const it = await open("helps");
    const name = held();
    await it.say(`find ${name} nothing`);
    await it.tool("running", name);
    assert.equal(await it.page.textContent("#state"), "busy");
    await release(name);
    await it.hears(`so: ${name} is known`);
    await it.state("ready");
    await it.tool("finished", `${name} is known`);
    await it.page.locator(".tool:not([data-state=running])", { hasText: "nobody knows" }).waitFor(WAIT);
    assert.equal(await it.page.locator(".tool").count(), 2);
    assert.equal(await it.messages().count(), 3);
  });

  newer("what is sent while a run works waits its turn in the page", async (open) => {
    const it = await open("chat", null, { queue: "local" });
    const name = await waiting(it);
    await release(name);
    await told(it, name);
  });

  newer("what is sent while a run works waits its turn at the server", async (open) => {
    const it = await open("chat", null, { queue: "server" });
    const name = await waiting(it);
    const other = await open("chat", await it.thread(), { queue: "server" });
    await other.queue("fourth", "second"); // the client shows what it finds the other way round
    await release(name);
    await told(it, name);
    await told(other, name);
  });

  newer("who works for the agent is shown apart", async (open) => {
    const it = await open("helps");
    const name = held();
    await it.say(`task ${name}`);
    const agent = it.other("listener", "running");
    await agent.locator("p[data-type=ai]", { hasText: "heard: " }).waitFor(WAIT);
    assert.deepEqual(await texts(it.messages("ai")), [""]);
    await release(name);
    await it.hears(`so: heard: ${name}.`);
    await it.state("ready");
    const said = [name, `heard: ${name}.`];
    assert.deepEqual(await texts(it.other("listener", "complete").locator("p")), said);
    assert.deepEqual(await texts(it.messages()), [`task ${name}`, "", `so: heard: ${name}.`]);
    const other = await open("helps", await it.thread());
    await other.other("listener", "complete").locator("p", { hasText: "heard: " }).waitFor(WAIT);
    assert.deepEqual(await texts(other.other("listener", "complete").locator("p")), said);
  });

  newer("a graph within the graph is shown apart", async (open) => {
    const it = await open("researches");
    const name = held();
    await it.say(name);
    await it.other("research", "running").locator("p[data-type=ai]", { hasText: "heard: " }).waitFor(WAIT);
    await release(name);
    await it.hears("notes taken: 2");
    await it.state("ready");
    assert.deepEqual(await texts(it.other("research", "complete").locator("p")), [name, `heard: ${name}.`]);
    await it.page.reload(); // until then the client adds them to the others as well
    await it.hears("notes taken: 2");
    await it.other("research", "complete").locator("p[data-type=ai]", { hasText: "heard: " }).waitFor(WAIT);
    assert.deepEqual(await texts(it.other("research", "complete").locator("p")), [name, `heard: ${name}.`]);
    assert.deepEqual(await texts(it.messages()), [name, "notes taken: 2"]);
  });

  row("each request carries the page's own header", async (open) => {
    const it = await open("chat");
    await it.say("hello");
    await it.hears("heard: hello.");
    await it.state("ready");
    const asked = it.sent.filter((request) => request.method() !== "OPTIONS");
    assert.ok(asked.length > 0);
    for (const request of asked) assert.equal(request.headers()["x-page"], "yes", request.url());
    assert.deepEqual(it.told.filter((line) => !line.startsWith("info") && !line.startsWith("debug")), []);
  });
});
