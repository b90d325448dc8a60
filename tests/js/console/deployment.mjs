// A deployment's page. `shop` has a first revision that serves and a second one that could not be built.

import { api, assert, scenario, until } from "./harness.mjs";

const record = async (name) => (await api("GET", `/v2/deployments?name=${name}`)).resources[0];
const pathOf = async (name, query = "") => `/deployments/${(await record(name)).id}${query && `?${query}`}`;
const isSettled = async (name) => ["DEPLOYED", "BUILD_FAILED", "DEPLOY_FAILED", "INTERRUPTED"].includes((await record(name)).latest_revision_status);
const revision = (page, number) => page.getByRole("row").filter({ has: page.getByRole("button", { name: `v${number}`, exact: true }) });

async function settled(name) {
  await until(() => isSettled(name), "the build has ended");
  return record(name);
}

async function say(name, text, times = 1) {
  await api("POST", `/d/${name}/runs/wait`, { assistant_id: "shop", input: { text, times } });
}

scenario("it shows where it is, what it runs and how to call it", async ({ page, open, deployments: { shop }, url, check }) => {
  await open(await pathOf(shop, "revision=1")); // a later one may have been taken from an earlier build, whose log is another
  await page.getByRole("heading", { name: shop, level: 1 }).waitFor();
  await page.getByText(`${url}/d/${shop}`, { exact: true }).waitFor();
  await revision(page, 1).getByText("DEPLOYED").waitFor();
  await revision(page, 1).getByText("bootstrap").waitFor();
  await page.getByRole("log", { name: "Build log" }).getByText("loading 1 graph").waitFor();
  for (const [language, text] of [["curl", "curl -N"], ["Python", "get_sync_client("], ["JavaScript", "new Client("]]) {
    await page.getByRole("tab", { name: language }).click();
    await page.getByText(text).waitFor();
    await page.getByText('"shop"').waitFor();
  }
  await check();
});

scenario("of a build that failed the step and its reason are on top, as text", async ({ page, open, deployments: { shop } }) => {
  await open(await pathOf(shop, "revision=2"));
  const alert = page.getByRole("alert");
  await alert.getByText(/The step “.+” failed/).waitFor();
  await alert.getByText("<script>globalThis.broken = 1</script>").waitFor();
  await page.getByRole("log", { name: "Build log" }).getByText("RuntimeError").first().waitFor();
  assert.equal(await page.evaluate(() => globalThis.broken), undefined);
  assert.ok(!(await page.locator("body").innerText()).includes("\x1b"));
  await page.reload();
  await alert.getByText(/The step “.+” failed/).waitFor();
  await revision(page, 1).getByRole("button", { name: "v1" }).click();
  await alert.waitFor({ state: "detached" });
  assert.match(page.url(), /revision=1/);
});

scenario("a revision is deployed again, and its log is followed", async ({ page, open, deployments: { shop } }) => {
  const before = await settled(shop);
  await open(await pathOf(shop));
  await revision(page, before.active_revision_number).getByRole("button", { name: "Redeploy" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  assert.equal((await record(shop)).latest_revision_number, before.latest_revision_number);
  await revision(page, before.active_revision_number).getByRole("button", { name: "Redeploy" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Redeploy" }).click();
  const number = before.latest_revision_number + 1;
  await revision(page, number).getByText(`redeploy of v${before.active_revision_number}`).waitFor();
  await page.getByRole("heading", { name: `Build log of v${number}` }).waitFor();
  await page.getByRole("log", { name: "Build log" }).getByText("deployed at").waitFor();
  await revision(page, number).getByText("serves").waitFor();
});

scenario("the one that served before is rolled back to", async ({ page, open, deployments: { shop } }) => {
  const before = await settled(shop);
  await open(await pathOf(shop));
  await page.getByRole("button", { name: "Roll back" }).first().click();
  await page.getByRole("dialog").getByRole("button", { name: "Roll back" }).click();
  await revision(page, before.latest_revision_number + 1).getByText("serves").waitFor();
});

scenario("what is on its way is interrupted", async ({ page, open, unique }) => {
  const name = unique("waits");
  await api("POST", "/v2/deployments", { name, source: "internal_source" });
  await open(await pathOf(name));
  await page.getByText("No revision serves yet.").waitFor();
  await page.getByRole("button", { name: "Interrupt" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Interrupt" }).click();
  await revision(page, 1).getByText("INTERRUPTED").waitFor();
  await page.getByRole("tab", { name: "Settings" }).click();
  await page.getByRole("button", { name: "Delete this deployment" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete permanently" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  assert.equal(await record(name), undefined);
});

scenario("variables are set and unset, never shown", async ({ page, open, deployments: { shop }, unique, check }) => {
  const other = (await settled(shop)).secrets[0].name;
  const name = unique("VAR").replace("-", "_").toUpperCase();
  await open(await pathOf(shop, "tab=settings"));
  await page.getByLabel("Name").fill(name);
  await page.getByLabel("Value").fill("hush-hush");
  await page.getByRole("button", { name: "Set", exact: true }).click();
  await page.getByText("will be set").waitFor();
  await page.getByRole("listitem").filter({ hasText: other }).getByRole("button", { name: "Unset" }).click();
  await check();
  await page.getByRole("button", { name: "Apply 2 changes" }).click();
  await page.getByRole("button", { name: "Apply 2 changes" }).waitFor({ state: "detached" });
  const line = page.getByRole("listitem").filter({ hasText: name });
  await line.getByRole("button", { name: "Unset" }).waitFor();
  assert.ok(!(await page.content()).includes("hush-hush"));
  assert.deepEqual((await settled(shop)).secrets.map((one) => one.name), [name]);
  assert.equal(await page.getByRole("listitem").filter({ hasText: other }).count(), 0);
});

scenario("limits are set, and what cannot be is said at its field", async ({ page, open, deployments: { shop }, allow }) => {
  allow(/status of 422/);
  await open(await pathOf(shop, "tab=settings"));
  await page.getByLabel("Concurrent runs").fill("many");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("alert").first().waitFor();
  await page.getByLabel("Concurrent runs").fill("7");
  await page.getByLabel("Cost of a user per day").fill("0.25");
  await page.getByLabel("Webhook at").fill("");
  await page.getByRole("button", { name: "Save" }).click();
  const shown = page.getByRole("definition").filter({ hasText: "Concurrent runs 7" });
  await shown.filter({ hasText: "Cost of a user per day $0.25" }).waitFor();
  const { max_concurrent_runs: runs, max_user_cost_per_day: cost } = (await record(shop)).limits;
  assert.deepEqual([runs, cost], [7, 0.25]);
  await page.getByLabel("Concurrent runs").fill("");
  await page.getByRole("button", { name: "Save" }).click();
  await shown.waitFor({ state: "detached" });
});

scenario("its log is followed, by text and level", async ({ page, open, deployments: { shop }, unique }) => {
  const [first, second] = [unique("first"), unique("second")];
  await say(shop, first);
  await open(await pathOf(shop, "tab=log"));
  const log = page.getByRole("log", { name: "Log" });
  await log.getByText(first).first().waitFor();
  await say(shop, second);
  await log.getByText(second).first().waitFor();
  await page.getByLabel("Lines with this text").fill(second);
  await log.getByText(first).first().waitFor({ state: "detached" });
  assert.match(page.url(), new RegExp(`text=${second}`));
  await page.getByLabel("Level").selectOption("ERROR");
  await log.getByText(`counted ${second}`).waitFor();
  await log.getByText(second, { exact: true }).waitFor({ state: "detached" });
});

scenario("bad things in names and logs stay text", async ({ page, open, deployments: { shop }, unique, check }) => {
  const before = await record(shop);
  const evil = `<img src=x onerror="globalThis.broken=1"><script>globalThis.broken=1</script>\u001b[2J${"n".repeat(500)}`;
  await api("PATCH", `/v2/deployments/${before.id}`, { display_name: evil });
  const mark = unique("mark");
  try {
    await say(shop, `${mark}<script>globalThis.broken=1</script>\u001b]0;title\u0007`, 20_000);
    await open(await pathOf(shop, "tab=log"));
    await page.getByRole("heading", { level: 1 }).getByText("<img src=x").waitFor();
    await page.getByRole("log", { name: "Log" }).getByText(mark).first().waitFor();
    await check();
    assert.equal(await page.evaluate(() => globalThis.broken), undefined);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
  } finally {
    await api("PATCH", `/v2/deployments/${before.id}`, { display_name: shop });
  }
});

scenario("its graphs are drawn", async ({ page, open, deployments: { shop } }) => {
  await open(await pathOf(shop, "tab=graphs"));
  await page.locator("svg text", { hasText: "say" }).waitFor();
  await page.getByRole("tab", { name: "Figures" }).click();
  await page.getByRole("figure", { name: "Runs" }).locator("canvas").waitFor();
  await page.goBack();
  await page.locator("svg text", { hasText: "say" }).waitFor();
});

scenario("who may only look is offered nothing else, and refused it", async ({ page, open, deployments: { shop }, keyOf }) => {
  const key = await keyOf("read");
  const { id, active_revision_id: served } = await settled(shop);
  await open(await pathOf(shop), { key });
  await revision(page, 1).waitFor();
  for (const name of ["Redeploy", "Roll back", "Interrupt"]) assert.equal(await page.getByRole("button", { name }).count(), 0);
  await page.getByRole("tab", { name: "Settings" }).click();
  await page.getByLabel("Concurrent runs").waitFor();
  assert.ok(await page.getByLabel("Concurrent runs").isDisabled());
  for (const name of ["Save", "Set", "Unset", "Delete this deployment"]) assert.equal(await page.getByRole("button", { name, exact: true }).count(), 0);
  await assert.rejects(api("POST", `/v2/deployments/${id}/revisions/${served}/redeploy`, undefined, { key }), { status: 403 });
  await assert.rejects(api("PATCH", `/v2/deployments/${id}`, { pool: "other" }, { key }), { status: 403 });
});
