// The frame around every page: the command palette, the navigation, tables as cards, placeholders, both themes.

import { api, assert, scenario } from "./harness.mjs";

const palette = (page) => page.getByRole("dialog", { name: "Search" });
const options = (page) => palette(page).getByRole("option");
const chosen = (page) => palette(page).getByRole("option", { selected: true });
const thread = (kitchen) => api("POST", `/d/${kitchen}/threads`, {});

/** Open the palette and wait until what it loads is there. */
async function search(page, text) {
  await page.keyboard.press("Control+k");
  await page.keyboard.type(text);
  await options(page).first().waitFor();
}

scenario("the palette leads to a deployment's page by the keyboard alone", async ({ page, open, deployments: { kitchen }, check }) => {
  await open("/");
  await page.getByRole("heading", { name: "Overview", exact: true }).waitFor();
  await search(page, `${kitchen} cro`);
  await chosen(page).filter({ hasText: "Crons" }).waitFor();
  await check();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Crons", exact: true }).waitFor();
  assert.equal(await palette(page).count(), 0);
  await search(page, "workers");
  await page.keyboard.press("Escape");
  await palette(page).waitFor({ state: "detached" });
  await page.keyboard.press("Control+k");
  await options(page).filter({ hasText: "Overview" }).first().waitFor();
  assert.match(await options(page).first().innerText(), /Overview/, "the page visited last is first");
  await palette(page).getByRole("group", { name: "Deployments" }).waitFor(); // loaded last
  await page.keyboard.press("ArrowUp");
  assert.equal(await options(page).last().getAttribute("aria-selected"), "true");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview", exact: true }).waitFor();
});

scenario("the palette finds a thread by the end of its id, and a run by its whole id", async ({ page, open, deployments: { kitchen } }) => {
  const { thread_id } = await thread(kitchen);
  const run = await api("POST", `/d/${kitchen}/threads/${thread_id}/runs`, { assistant_id: "echo", input: { text: "hello" } });
  await open(`/d/${kitchen}/crons`);
  await page.getByRole("heading", { name: "Crons", exact: true }).waitFor();
  await page.getByRole("button", { name: "Search", exact: true }).or(page.getByTitle(/^Search/)).first().click();
  await page.keyboard.type(thread_id.slice(-8));
  await palette(page).getByRole("group", { name: "Threads" }).getByRole("option").first().waitFor();
  await page.keyboard.press("Enter");
  await page.waitForURL((url) => url.hash === `#/d/${kitchen}/threads/${thread_id}`);
  await page.goto(`${page.url().split("#")[0]}#/usage`);
  await page.getByRole("heading", { name: "Usage", exact: true }).waitFor();
  await search(page, run.run_id);
  await page.keyboard.press("Enter");
  await page.waitForURL((url) => url.hash === `#/d/${kitchen}/runs/${thread_id}/${run.run_id}`);
});

scenario("the palette makes a key and signs out", async ({ page, open }) => {
  await open("/usage");
  await page.getByRole("heading", { name: "Usage", exact: true }).waitFor();
  await search(page, "new key");
  await page.keyboard.press("Enter");
  await page.getByRole("dialog", { name: "New key" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await search(page, "sign out");
  await page.keyboard.press("Enter");
  await page.getByLabel("API key").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

scenario("tables never scroll sideways, and are cards on a telephone", async ({ page, open, isNarrow, keyOf, deployments: { kitchen } }) => {
  await keyOf("read");
  const { thread_id } = await thread(kitchen);
  await api("POST", `/d/${kitchen}/threads/${thread_id}/runs/wait`, { assistant_id: "fails", input: {} });
  for (const path of ["/", `/d/${kitchen}/runs`, `/d/${kitchen}/threads`, `/d/${kitchen}/assistants`, "/workers", "/keys"]) {
    await open(path);
    const table = page.locator(".table-box:not([aria-busy])").first();
    await table.getByRole("row").nth(1).waitFor();
    const { over, isCards } = await page.evaluate(() => ({
      over: [document.documentElement, ...document.querySelectorAll(".table-box")].filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.getAttribute("aria-label") ?? one.localName),
      isCards: document.querySelector(".table-box").classList.contains("cards"),
    }));
    assert.equal(isCards, isNarrow, path);
    if (isNarrow) assert.deepEqual(over, [], path);
  }
});

scenario("a table of a thousand rows draws those in sight, as cards some at a time", async ({ page, open, isNarrow }) => {
  const key = (n) => ({ id: `k${n}`, name: `key ${n}`, role: "read", limits: {}, created_at: new Date().toISOString() });
  await page.route("**/v2/keys?*", (route) => route.fulfill({ json: { resources: Array.from({ length: 1000 }, (_, n) => key(n)), offset: 0 } }));
  await open("/keys");
  const rows = page.getByRole("region", { name: "API keys" }).locator("tbody tr");
  await rows.nth(5).waitFor();
  if (isNarrow) {
    assert.equal(await rows.count(), 100);
    await page.getByRole("button", { name: "Show more (900 left)" }).click();
    await rows.nth(199).waitFor();
    return;
  }
  assert.ok((await rows.count()) < 100);
  const heights = await rows.evaluateAll((all) => all.filter((row) => !row.matches(".spacer")).map((row) => row.getBoundingClientRect().height));
  assert.deepEqual([...new Set(heights)], [31], "the height that the window of rows is computed with");
  await page.getByRole("region", { name: "API keys" }).evaluate((box) => box.scrollTo(0, box.scrollHeight));
  await page.getByText("key 999").waitFor();
});

scenario("what loads has its room before it comes", async ({ page, open, check, keyOf }) => {
  await keyOf("read");
  await page.route("**/v2/keys?*", async (route) => {
    await new Promise((done) => setTimeout(done, 1500));
    await route.continue();
  });
  await open("/keys");
  await page.locator(".bone").first().waitFor();
  await check();
  await page.getByRole("region", { name: "API keys" }).getByRole("row").nth(1).waitFor();
  await page.locator(".bone").first().waitFor({ state: "detached" });
});

scenario("the other theme is as readable", async ({ page, open, isNarrow, deployments: { kitchen }, check }) => {
  await page.addInitScript((theme) => localStorage.setItem("runyard.theme", theme), isNarrow ? "light" : "dark");
  for (const path of ["/", `/d/${kitchen}/runs`]) {
    await open(path);
    await page.locator(".table-box:not([aria-busy])").first().waitFor();
    await check();
  }
  await search(page, kitchen);
  await check();
}, { ownTab: true });
