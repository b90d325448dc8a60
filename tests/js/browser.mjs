// What people do with a chat in a browser, once with each hook: `tests/e2e/test_browser.py` starts it with a deployment's
// address. A row that fails leaves a screenshot and the page's console in ARTIFACTS.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { mkdir, writeFile } from "node:fs/promises";
import { after, before, suite, test } from "node:test";
import packed from "@sparticuz/chromium";
import { build } from "esbuild";
import { chromium } from "playwright-core";

const { DEPLOYMENT_URL: url, DEPLOYMENT_KEY: key, ARTIFACTS: artifacts, HOOK: hook, TRANSPORT: transport } = process.env;
const HTML = '<!doctype html><meta charset="utf-8"><title>Chat</title><div id="root"></div><script type="module" src="/page.js"></script>';
const WAIT = { timeout: 30_000 };

let browser, server, origin;

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
  const ours = ["--disable-background-networking", "--disable-component-update", "--disable-sync"];
  const args = [...packed.args.filter((one) => one !== "--single-process"), ...ours];
  browser = await chromium.launch({ executablePath: await packed.executablePath(), args, headless: true });
});

after(async () => {
  await browser?.close();
  server?.close();
});

// A page with a chat of a graph; `sent` are the headers of its requests to the deployment.
async function chat(graph, thread) {
  const page = await browser.newPage();
  const told = [], sent = [];
  page.on("console", (message) => told.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => told.push(String(error)));
  page.on("request", (request) => request.url().startsWith(url) && sent.push(request));
  page.on("response", (response) => response.status() >= 400 && told.push(`${response.status()} ${response.url()}`));
  const query = new URLSearchParams({ url, key, graph, hook, ...(thread && { thread }), ...(transport && { transport }) });
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
