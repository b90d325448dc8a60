// The overview: what there is, how it does, what waits.

import { api, assert, scenario } from "./harness.mjs";

scenario("deployments, pools and figures are shown", async ({ page, open, deployments: { kitchen }, isNarrow, check }) => {
  await api("POST", `/d/${kitchen}/runs/wait`, { assistant_id: "echo", input: { text: "hello" } });
  await api("POST", `/d/${kitchen}/runs/wait`, { assistant_id: "fails", input: { text: "x" } }).catch(() => {});
  await open("/");
  const row = page.getByRole("row").filter({ has: page.getByRole("link", { name: kitchen, exact: true }) });
  await row.getByText("READY").waitFor();
  await row.getByRole("link", { name: /^[1-9]\d*$/ }).waitFor(); // how many failed
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
