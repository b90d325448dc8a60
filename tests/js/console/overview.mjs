// The overview: what there is, how it does, what waits.

import { api, assert, scenario } from "./harness.mjs";

scenario("deployments, pools and figures are shown", async ({ page, open, deployments: { kitchen }, isNarrow, check }) => {
  await api("POST", `/d/${kitchen}/runs/wait`, { assistant_id: "echo", input: { text: "hello" } });
  await api("POST", `/d/${kitchen}/runs/wait`, { assistant_id: "fails", input: { text: "x" } }).catch(() => {});
  await open("/");
  const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: kitchen, exact: true }) });
  await row.getByText("READY").waitFor();
  await row.getByRole("link", { name: /^[1-9]\d*$/ }).waitFor(); // how many failed
  await page.getByRole("figure", { name: "Runs" }).getByText("in all").waitFor();
  await page.getByRole("region", { name: "Pools" }).getByText("default").waitFor();
  await page.getByRole("figure", { name: "Runs" }).locator("canvas").waitFor();
  await check();
  await page.getByLabel("Window").selectOption("day");
  await page.getByRole("heading", { name: "Last day" }).waitFor();
  assert.match(page.url(), /window=day/);
  await page.reload();
  await page.getByRole("heading", { name: "Last day" }).waitFor();
  if (!isNarrow) assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
});

scenario("a deployment is opened, and the back button leads back", async ({ page, open, deployments: { kitchen } }) => {
  await open("/?window=day");
  await page.getByRole("link", { name: kitchen, exact: true }).click();
  await page.getByRole("heading", { name: kitchen, level: 1 }).waitFor();
  await page.goBack();
  await page.getByRole("heading", { name: "Last day" }).waitFor();
});

scenario("the number of failures leads to all that failed in this time", async ({ page, open, deployments: { kitchen } }) => {
  const failed = [];
  for (let n = 0; n < 2; n++) {
    const { thread_id } = await api("POST", `/d/${kitchen}/threads`, {});
    await api("POST", `/d/${kitchen}/threads/${thread_id}/runs/wait`, { assistant_id: "fails", input: {} });
    failed.push(thread_id);
  }
  await open("/");
  const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: kitchen, exact: true }) });
  await row.getByRole("link", { name: /^[1-9]\d*$/ }).click();
  for (const id of failed) await page.getByTitle(id, { exact: true }).waitFor();
  const { searchParams } = new URL(page.url().replace("#/", ""));
  assert.equal(searchParams.get("status"), "failures");
  const age = Date.now() - Date.parse(searchParams.get("since"));
  // `since` is the start of the step in which the last hour began.
  assert.ok(age > 0 && age < 2 * 3_600_000, searchParams.get("since"));
  const chosen = page.getByRole("combobox", { name: "Time", exact: true }).locator("option:checked");
  assert.match(await chosen.innerText(), /^Since /);
});
