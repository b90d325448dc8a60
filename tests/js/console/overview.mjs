// The overview: totals, deployments, failed runs by reason, pools, changes and charts.

import { api, assert, scenario, until } from "./harness.mjs";

const rowOf = (page, name) => page.getByRole("row").filter({ has: page.getByRole("link", { name, exact: true }) });
/** Wait for the deployments, and open the rows of all. */
const showAll = async (page) => {
  await page.getByRole("region", { name: "Deployments" }).getByRole("link").first().waitFor();
  const more = page.getByRole("button", { name: /^Show all [\d,]+ deployments$/ });
  if (await more.isVisible()) await more.click();
};
const fail = async (name) => {
  const { thread_id } = await api("POST", `/d/${name}/threads`, {});
  await api("POST", `/d/${name}/threads/${thread_id}/runs/wait`, { assistant_id: "fails", input: {} });
  return thread_id;
};

scenario("deployments, pools and figures are shown", async ({ page, open, deployments: { kitchen }, isNarrow, check }) => {
  await api("POST", `/d/${kitchen}/runs/wait`, { assistant_id: "echo", input: { text: "hello" } });
  await fail(kitchen);
  await open("/");
  await page.getByRole("region", { name: "Deployments" }).getByRole("link").first().waitFor();
  if (!isNarrow) assert.ok((await page.getByRole("region", { name: "Pools" }).boundingBox()).y < 700, "the pools are not on the first screen");
  await showAll(page);
  const row = rowOf(page, kitchen);
  await row.getByText(/^ready$/i).waitFor();
  await row.getByRole("link", { name: /^[1-9]\d*$/ }).first().waitFor(); // the number of failed runs
  await page.getByText("Runs ended").waitFor();
  await page.getByRole("figure", { name: "Runs" }).getByText("in total").waitFor();
  await page.getByRole("region", { name: "Pools" }).getByText("default").waitFor();
  await page.getByRole("figure", { name: "Runs" }).locator("canvas").waitFor();
  await check();
  await page.getByLabel("Window").selectOption("day");
  await page.getByRole("heading", { name: "Last day" }).waitFor();
  assert.match(page.url(), /window=day/);
  await page.reload();
  await page.getByRole("heading", { name: "Last day" }).waitFor();
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the window");
});

scenario("charts are drawn when the browser's language is not a valid tag", async ({ page, open, deployments: { kitchen } }) => {
  await page.addInitScript(() => Object.defineProperty(Navigator.prototype, "language", { get: () => "en-US@posix" }));
  await api("POST", `/d/${kitchen}/runs/wait`, { assistant_id: "echo", input: { text: "hello" } });
  await open("/");
  await page.getByRole("figure", { name: "Runs" }).locator("canvas").waitFor();
}, { ownTab: true });

scenario("the overview and a deployment move little while they load", async ({ page, open, deployments: { kitchen } }) => {
  await page.addInitScript(() => {
    globalThis.shift = 0;
    const add = (list) => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) globalThis.shift += entry.value; };
    new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });
  });
  const [{ id }] = (await api("GET", `/v2/deployments?name=${kitchen}`)).resources;
  await open("/");
  await page.getByRole("figure", { name: "Wait" }).locator("canvas").waitFor();
  const overview = await page.evaluate(() => globalThis.shift);
  assert.ok(overview < 0.1, `overview: ${overview}`);
  await open(`/deployments/${id}`);
  await page.getByRole("log").filter({ hasText: "deployed at" }).or(page.locator(".log", { hasText: "deployed at" })).first().waitFor();
  const deployment = await page.evaluate(() => globalThis.shift);
  assert.ok(deployment < 0.1, `deployment: ${deployment}`);
}, { ownTab: true });

scenario("a deployment is opened, and the back button leads back", async ({ page, open, deployments: { kitchen } }) => {
  await open("/?window=day");
  await showAll(page);
  await rowOf(page, kitchen).getByText(/^ready$/i).waitFor();
  await page.getByRole("link", { name: kitchen, exact: true }).first().click();
  await page.getByRole("heading", { name: kitchen, level: 1 }).waitFor();
  await page.locator(".page-title").getByText(/^ready$/i).waitFor();
  await page.goBack();
  await page.getByRole("heading", { name: "Last day" }).waitFor();
});

scenario("the number of failures leads to all that failed in this time", async ({ page, open, deployments: { kitchen } }) => {
  const failed = [await fail(kitchen), await fail(kitchen)];
  await open("/");
  await showAll(page);
  await rowOf(page, kitchen).getByRole("link", { name: /^[1-9]\d*$/ }).first().click();
  for (const id of failed) await page.locator(`a[href*="${id}"]`).first().waitFor();
  const { searchParams } = new URL(page.url().replace("#/", ""));
  assert.equal(searchParams.get("status"), "failures");
  const age = Date.now() - Date.parse(searchParams.get("since"));
  // `since` is the start of the step in which the last hour began.
  assert.ok(age > 0 && age < 2 * 3_600_000, searchParams.get("since"));
  const chosen = page.getByRole("combobox", { name: "Time", exact: true }).locator("option:checked");
  assert.match(await chosen.innerText(), /^Since /);
});

scenario("a reason leads to exactly its runs, and runs that left no record are named with their number", async ({ page, open, deployments: { kitchen } }) => {
  await fail(kitchen);
  await api("POST", `/d/${kitchen}/runs/wait`, { assistant_id: "fails", input: {} }); // stateless
  await open("/");
  await showAll(page);
  const panel = page.getByRole("region", { name: "Failed runs by reason" });
  await panel.getByText(/\d failed .*left no record/).waitFor();
  const reason = panel.getByRole("listitem").filter({ hasText: "ValueError" }).filter({ hasText: kitchen });
  const link = reason.getByRole("link");
  const counted = Number((await reason.locator("b").innerText()).replace(",", ""));
  const { searchParams } = new URL((await link.getAttribute("href")).slice(2), "http://page");
  const filters = { status: [searchParams.get("status")], error: searchParams.get("error"), since: searchParams.get("since"), until: searchParams.get("until") };
  const runs = await api("POST", `/d/${kitchen}/runs/search`, { ...filters, limit: 1000 });
  assert.ok(runs.length >= counted && counted > 0, `${runs.length} of ${counted}`); // a run may end between the two requests
  await link.click();
  await page.getByText(new RegExp(`^${runs.length} runs?$`)).waitFor();
});

scenario("changes of keys are listed with the key that made them", async ({ page, open, unique }) => {
  const name = unique("robot");
  const { id } = await api("POST", "/v2/keys", { name, role: "read" });
  await open("/");
  await showAll(page);
  const changes = page.getByRole("region", { name: "Latest changes" });
  const earlier = changes.getByRole("button", { name: "Show earlier changes" });
  /** Is a change listed? Tests beside this one may have made seven newer ones, which fold it away. */
  const isListed = async (change) => {
    if (await earlier.isVisible()) await earlier.click();
    return (await changes.getByText(change).count()) === 1;
  };
  await until(() => isListed(`${name} key created, role read`), "the new key is not listed");
  await api("DELETE", `/v2/keys/${id}`);
  await until(() => isListed(`${name} key revoked by bootstrap`), "the revoked key is not listed");
});
