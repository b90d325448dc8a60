// What a hostile deployment tries against a console that is signed in, in one tab: tests/e2e/test_hostile_pages.py starts
// it. tests/projects/hostile writes LOOT to the browser's console for whatever it gets, and DENIED for what it does not.

import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { browser, drawOnly } from "./chromium.mjs";

const { SERVICE_URL: url, DEPLOYMENT_URL: deployment, DEPLOYMENT_KEY: key } = process.env;
const WAIT = { timeout: 30_000 };
const STOLEN = /^LOOT/;

const context = await browser.newContext(); // of all tests, so that the console's files are loaded once
await drawOnly(context, "/page", "/threads/search", "/threads/count", "/d/{deployment}/threads/{thread_id}");
let said, answered;
context.on("console", (message) => said.push(message.text()));
context.on("serviceworker", (worker) => said.push(`LOOT service worker ${worker.url()}`));
context.on("response", (response) => answered.push(response.url()));

// A tab with a console that is signed in, and no other; `said` has what it and the tabs that it opens write to their consoles.
async function signedIn() {
  for (const page of context.pages()) await page.close();
  [said, answered] = [[], []];
  const page = await context.newPage();
  await page.goto(`${url}/`);
  await page.getByLabel("API key").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor(WAIT);
  assert.equal(await page.evaluate(() => sessionStorage.getItem("runyard.key")), key);
  return { page, said, answered, loot: () => said.filter((line) => STOLEN.test(line)) };
}

async function madeKey() {
  const headers = { "x-api-key": key, "content-type": "application/json" };
  const answer = await fetch(`${url}/v2/keys`, { method: "POST", headers, body: JSON.stringify({ name: "victim", role: "read" }) });
  return answer.json();
}

const statusOf = async (of) => (await fetch(`${url}/v2/me`, { headers: { "x-api-key": of } })).status;

const docs = (page) => page.locator("rapi-doc").first();

let reading;

/** The docs page in one tab for all tests of it. The document is drawn, so whatever would run in it has been put into the page. */
function docsRead() {
  reading ??= signedIn().then(async (it) => {
    await it.page.goto(`${deployment}/docs`);
    await docs(it.page).getByText("Hostile, as Markdown.").first().waitFor(WAIT);
    await docs(it.page).getByText("Search threads").first().waitFor(WAIT);
    await it.page.waitForLoadState("networkidle", { timeout: 90_000 });
    return it;
  });
  return reading;
}

async function attacked(page, said) {
  await page.waitForLoadState("networkidle", { timeout: 90_000 });
  for (const how of ["storage", "frame", "worker", "control plane"]) {
    const deadline = Date.now() + WAIT.timeout;
    while (!said.some((line) => line.includes(` ${how} `))) {
      assert.ok(Date.now() < deadline, `the attack did not try: ${how}\n${said.join("\n")}`);
      await page.waitForTimeout(50);
    }
  }
}

suite("hostile", () => {
  test("the docs page runs nothing of the deployment", async () => {
    const it = await docsRead();
    await docs(it.page).getByText("A link that runs").first().click();
    assert.deepEqual(it.loot(), []);
    assert.ok(!it.said.some((line) => line.startsWith("DENIED")), it.said.join("\n"));
    assert.deepEqual(it.answered.filter((one) => one.startsWith(deployment) && /attack\.js|static\/|leak\.|picture|page$/.test(one)), []);
  });

  test("the docs page is of another origin than the console", async () => {
    const it = await docsRead();
    assert.equal(await it.page.evaluate(() => self.origin), "null");
    assert.match(await it.page.evaluate(() => { try { return sessionStorage.getItem("runyard.key"); } catch (error) { return error.name; } }), /SecurityError/);
  });

  test("the docs page calls the deployment with the key that is typed into it, and with no other", async () => {
    const it = await docsRead();
    const call = (path, headers) => it.page.evaluate(([path, headers]) =>
      fetch(path, { method: "POST", headers: { "content-type": "application/json", ...headers }, body: "{}" }).then((answer) => answer.status, (error) => error.name),
    [path, headers]);
    const address = new URL(`${deployment}/threads/search`).pathname;
    assert.equal(await call(address, {}), 401);
    assert.equal(await call(address, { "x-api-key": key }), 200);
    assert.equal(await call("/v2/keys", { "x-api-key": key }), "TypeError");
  });

  test("a request is tried on the docs page", async () => {
    const it = await docsRead();
    const page = docs(it.page);
    await page.locator("[part~=section-auth] input[type=text]").first().fill(key);
    await page.locator("[part~=section-auth] button", { hasText: "SET" }).first().click();
    const answer = it.page.waitForResponse((one) => one.url() === `${deployment}/threads/count`, WAIT);
    await page.locator("[id='post-/threads/count'] button", { hasText: "TRY" }).click();
    assert.equal((await answer).status(), 200);
    assert.equal((await (await answer).request().allHeaders())["x-api-key"], key);
  });

  test("the docs page calls no other deployment", async () => {
    const it = await docsRead();
    const outcome = await it.page.evaluate(([path, key]) =>
      fetch(path, { method: "POST", headers: { "x-api-key": key } }).then((answer) => answer.status, (error) => error.message),
    [`${new URL(deployment).pathname}/%2e%2e/other/threads/search`, key]);
    assert.match(String(outcome), /^Only addresses below/);
    assert.ok(!it.answered.some((one) => one.includes("/other/")), it.answered.join("\n"));
  });

  test("a redirect does not turn a request of the docs page of the service into another", async () => {
    const it = await signedIn();
    const victim = await madeKey();
    await it.page.goto(`${url}/docs`);
    const page = docs(it.page);
    await page.locator("[part~=section-auth] input[type=text]").first().fill(key);
    await page.locator("[part~=section-auth] button", { hasText: "SET" }).first().click();
    const operation = page.locator("[id='delete-/d/-deployment-/threads/-thread_id-']");
    await operation.locator("[data-pname=deployment]").first().fill(new URL(deployment).pathname.split("/").at(-1));
    await operation.locator("[data-pname=thread_id]").first().fill(victim.id);
    const failed = it.page.waitForEvent("requestfailed", WAIT);
    await operation.locator("button", { hasText: "TRY" }).click();
    assert.equal((await failed).url(), `${deployment}/threads/${victim.id}`);
    assert.equal(await statusOf(victim.key), 200, "the key was revoked");
  });

  test("a body after a 205 is not the response to a call of the console", async () => {
    const it = await signedIn();
    await it.page.goto(`${deployment}/leak.css`);
    const reset = it.page.waitForEvent("requestfailed", WAIT); // the browser stays at its page
    await it.page.evaluate((to) => void (location = to), `${deployment}/reset`);
    await reset;
    const console_ = it.page.waitForRequest(`${url}/`, WAIT);
    await it.page.evaluate((to) => void (location = to), `${url}/`);
    await console_;
    await fetch(`${deployment}/release`, { method: "POST" });
    await it.page.getByRole("heading", { name: "Overview" }).waitFor(WAIT);
    assert.deepEqual(it.loot(), []);
  });

  test("no page and no picture of the deployment reads the key in the console's tab", async () => {
    const it = await signedIn();
    for (const path of ["page", "picture.svg"]) {
      it.said.length = 0;
      await it.page.goto(`${deployment}/${path}`);
      await attacked(it.page, it.said);
      assert.deepEqual(it.loot(), [], path);
      await it.page.goto(`${url}/`);
      await it.page.getByRole("heading", { name: "Overview" }).waitFor(WAIT); // Clear-Site-Data has not signed out
    }
  });

  test("a page that opens the console does not hold its window", async () => {
    const it = await signedIn();
    await it.page.goto(`${deployment}/page`);
    const [opened] = await Promise.all([
      context.waitForEvent("page"),
      it.page.evaluate((to) => void (window.held = window.open(to)), `${url}/`),
    ]);
    await opened.locator("main").waitFor(WAIT);
    await it.page.waitForFunction(() => window.held.closed, null, WAIT); // COOP has cut it off
    assert.equal(await opened.evaluate(() => window.opener), null);
  });

  test("a page that the console opens gets nothing of its tab", async () => {
    const it = await signedIn();
    const [opened] = await Promise.all([
      context.waitForEvent("page"),
      it.page.evaluate((to) => void window.open(to), `${deployment}/page`),
    ]);
    await attacked(opened, it.said);
    assert.deepEqual(it.loot(), []);
  });

  let inConsole; // of the two tests that stay in the console's page

  test("the console embeds and runs nothing of a deployment", async () => {
    const it = inConsole = await signedIn();
    for (const source of ["script", "module", "worker"]) {
      const outcome = await it.page.evaluate(async ([source, address]) => {
        if (source === "module") return import(address).then(() => "ran", (error) => error.name);
        if (source === "worker") return navigator.serviceWorker.register(address).then(() => "ran", (error) => error.name);
        return new Promise((done) => {
          const script = document.createElement("script");
          const policy = { createScriptURL: (text) => text };
          try {
            script.src = trustedTypes.createPolicy("dompurify", policy).createScriptURL(address);
          } catch {
            script.setAttribute("type", "text/plain");
            return done("refused");
          }
          script.onload = () => done("ran");
          script.onerror = () => done("refused");
          document.head.append(script);
        });
      }, [source, `${deployment}/attack.js`]);
      assert.notEqual(outcome, "ran", source);
    }
    assert.deepEqual(it.loot(), []);
  });

  test("a redirect of the deployment's app does not turn a call of the console into another", async () => {
    const it = inConsole;
    const victim = await madeKey();
    const name = new URL(deployment).pathname.split("/").at(-1);
    const outcome = await it.page.evaluate(async ([name, id]) => {
      const files = document.querySelector("script[type=module]").src.replace(/main\.js$/, "core/api.js");
      const { deployment } = await import(files);
      return deployment(name).call("DELETE", `/threads/${id}`).then(() => "done", (error) => error.detail);
    }, [name, victim.id]);
    assert.equal(await statusOf(victim.key), 200, "the key was revoked");
    assert.notEqual(outcome, "done");
  });
});
