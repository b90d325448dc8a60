// Scenarios of a page of the console, played in a browser at the width that WIDTH names.
//
// A page has a file `tests/js/console/PAGE.mjs` with its scenarios and a file `tests/e2e/console/test_PAGE.py` that runs them:
//
//   import { assert, scenario } from "./harness.mjs";
//
//   scenario("deployments are listed", async ({ open, page, deployments }) => {
//     await open("/");
//     await page.getByRole("link", { name: deployments.kitchen }).waitFor();
//   });
//
// A scenario gets `page` (playwright's), `open(path, {key})` (a page of the console, signed in), `api(method, path, body, {key})`
// (JSON from any address of the service; a refusal throws with its `status`),
// `url`, `key` (the operator's), `keyOf(role)` (another key), `deployments` (names, as the test gave them), `width`, `unique(word)`,
// `check()` (axe and errors at once), `allow(pattern)` for errors of the console that it means to cause, and `picture(name)`,
// which `make pictures` keeps in docs/pictures (1280 wide alone).
// Afterwards axe must find no serious fault, and the page must have told no error, broken no policy and asked no other
// origin. Of what failed a picture and the page's console stay in ARTIFACTS.
//
// The scenarios of a file share one tab, so that its process starts once and compiles the console's files once. Storage, cookies,
// routes and listeners are removed after each. A scenario that adds an init script passes `{ ownTab: true }`.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { suite, test } from "node:test";
import { browser } from "../chromium.mjs";
import { reduced } from "./png.mjs";

export { assert };

const { CONSOLE_URL: url, CONSOLE_KEY: key, ARTIFACTS: artifacts, DEPLOYMENTS: deployments = "{}", PICTURES: pictures } = process.env;
const AXE = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WIDTH = Number(process.env.WIDTH ?? 1280);
const WAIT_MS = Number(process.env.WAIT_MS ?? 30_000);
const ORIGIN = new URL(url).origin;

const context = await browser.newContext({
  viewport: { width: WIDTH, height: 900 }, locale: "en-US", colorScheme: WIDTH < 700 ? "dark" : "light", acceptDownloads: true,
  reducedMotion: "reduce", // drawing what moves keeps a processor busy
});
await context.addInitScript(() => addEventListener("securitypolicyviolation", (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`)));

/** One scenario; `run` gets the object that the head of this file describes. */
export function scenario(name, run, { ownTab = false } = {}) {
  suite("console", () => {
    test(`${name} (${WIDTH})`, () => play(name, WIDTH, run, ownTab));
  });
}

let tab; // of the scenarios that share one

async function play(name, width, run, ownTab) {
  const page = ownTab || !tab ? await context.newPage() : tab;
  const it = visit(page, width);
  let isReusable = !ownTab;
  try {
    await run(it);
    await it.check();
  } catch (error) {
    isReusable = false;
    await keep(it, `${name}-${width}`, error);
    throw error;
  } finally {
    await page.evaluate(() => { localStorage.clear(); sessionStorage.clear(); }).catch(() => { isReusable = false; });
    await context.clearCookies();
    if (isReusable) {
      for (const event of ["console", "pageerror", "request", "dialog"]) page.removeAllListeners(event);
      await page.unrouteAll({ behavior: "ignoreErrors" });
      await page.goto("about:blank");
      tab = page;
    } else if (page === tab) tab = undefined;
    for (const other of context.pages()) if (other !== tab) await other.close();
  }
}

function visit(page, width) {
  page.setDefaultTimeout(WAIT_MS);
  const told = [], allowed = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && told.push(message.text()));
  page.on("pageerror", (error) => told.push(error.stack ?? String(error)));
  page.on("request", (request) => isForeign(request.url()) && told.push(`another origin: ${request.url()}`));
  return {
    page, url, key, width, told, unique, api, keyOf,
    deployments: JSON.parse(deployments),
    isNarrow: width < 700,
    allow: (pattern) => allowed.push(pattern),
    open: async (path, { key: other = key } = {}) => {
      await page.goto(`${url}/ok`); // the smallest document of the service, whose storage is this tab's
      await page.evaluate((given) => (given ? sessionStorage.setItem("runyard.key", given) : sessionStorage.removeItem("runyard.key")), other);
      await page.goto(`${url}/#${path}`);
    },
    check: async () => {
      assert.deepEqual(await faults(page), []);
      assert.deepEqual(told.filter((line) => !allowed.some((pattern) => pattern.test(line))), []);
    },
    picture: async (name) => {
      if (!pictures || width < 700) return;
      await mkdir(pictures, { recursive: true });
      await writeFile(`${pictures}/${name}.png`, reduced(await page.screenshot({ animations: "disabled", caret: "hide" })));
    },
  };
}

/** Wait until something holds, and fail with what it is if it does not come to that within a minute. */
export async function until(said, what) {
  for (let tries = 0; tries < 600; tries++) {
    if (await said()) return;
    await new Promise((done) => setTimeout(done, 100));
  }
  assert.fail(what);
}

const unique = (word) => `${word}-${randomUUID().slice(0, 8)}`;

const isForeign = (address) => /^(https?|wss?):/.test(address) && new URL(address).origin !== ORIGIN;

const checked = new Set();

/** What axe finds that keeps somebody from using the page, in what shows a kind of element that was not found well before. */
async function faults(page) {
  let { kinds, violations } = await page.evaluate(examined, [...checked]);
  if (kinds.length && !violations) {
    await page.evaluate(AXE);
    ({ kinds, violations } = await page.evaluate(examined, [...checked]));
  }
  const serious = (violations ?? []).filter(({ impact }) => impact === "serious" || impact === "critical");
  if (!serious.length) for (const kind of kinds) checked.add(kind);
  return serious.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 200)} ${node.failureSummary ?? ""}`).join(" | ")}`);
}

/** In the page: the kinds of elements that are not known yet, and what axe, once it is loaded, finds in the outermost elements of
 * such kinds. A kind is a place in the document, by the tags, classes, attributes and roles on the way to it. */
async function examined(known) {
  const knows = new Set(known), kinds = new Set(), outermost = [];
  const walk = (element, above, isBelowNew) => {
    const names = element.getAttributeNames().sort().map((name) => (/^(class|role|type|data-theme|aria-(?!label|controls|describedby|activedescendant|value|set|pos))/.test(name) ? `${name}=${element.getAttribute(name)}` : name));
    const text = `${above}>${element.localName}[${names}]${element.textContent.trim() ? "" : " empty"}`;
    const kind = [...text].reduce((sum, letter) => (Math.imul(sum, 31) + letter.codePointAt(0)) | 0, 7); // shorter than the whole way
    const isNew = !knows.has(kind) && !kinds.has(kind);
    if (isNew) kinds.add(kind);
    if (isNew && !isBelowNew) outermost.push(element);
    if (element.localName !== "svg") for (const child of element.children) walk(child, kind, isNew || isBelowNew);
  };
  walk(document.documentElement, 0, false);
  const options = { resultTypes: ["violations"], preload: false };
  const isExamined = globalThis.axe && outermost.length; // at once: the page may replace elements at any time
  return { kinds: [...kinds], violations: isExamined ? (await axe.run({ include: outermost }, options)).violations : null };
}

/** A call of the API beside the page. */
export async function api(method, path, body, { key: other = key, headers = {} } = {}) {
  const answer = await fetch(`${url}${path}`, {
    method,
    headers: { "x-api-key": other, "x-auth-scheme": "langsmith", ...(body !== undefined && { "content-type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  if (!answer.ok) throw Object.assign(new Error(`${method} ${path}: ${answer.status} ${text}`), { status: answer.status });
  return text && (answer.headers.get("content-type") ?? "").includes("json") ? JSON.parse(text) : text || null;
}

const made = new Map();

/** A key of that role in the same organization. */
async function keyOf(role) {
  if (!made.has(role)) made.set(role, api("POST", "/v2/keys", { name: `console-${role}`, role }));
  return (await made.get(role)).key;
}

async function keep(it, name, error) {
  await mkdir(artifacts, { recursive: true });
  const place = `${artifacts}/${name.replaceAll(/[^\w-]+/g, "-")}`;
  await it.page.screenshot({ path: `${place}.png` }).catch(() => {});
  const text = await it.page.locator("body").innerText({ timeout: 2000 }).catch(() => "");
  await writeFile(`${place}.txt`, `${it.page.url()}\n${it.told.join("\n")}\n\n${text}`);
  error.stack += `\n${place}.png\n${it.page.url()}\n${it.told.slice(-10).join("\n")}\n${text.slice(0, 1500)}`;
}
