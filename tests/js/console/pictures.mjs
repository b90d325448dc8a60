// A shop's agents, as docs/guides/console.md shows them: `make pictures` keeps what is seen here.

import { api, assert, scenario } from "./harness.mjs";

const PAUSED = { namespace: ["desk"], key: "paused" };
const items = (it, method, body) => api(method, "/d/support/store/items", body, { key: it.deployments.key });
const pause = (it) => items(it, "PUT", { ...PAUSED, value: {} });
const goOn = (it) => items(it, "DELETE", PAUSED);
const start = (it, text) => api("POST", `/d/support/threads/${it.deployments.busy}/runs`, { assistant_id: "support", input: { messages: [{ role: "user", content: text }] } }, { key: it.deployments.key });
const show = (it, path) => it.open(path, { key: it.deployments.key });

async function idle(it) {
  const { page, deployments } = it;
  for (;;) {
    const { status } = await api("GET", `/d/support/threads/${deployments.busy}`, undefined, { key: deployments.key });
    if (status !== "busy") return;
    await page.waitForTimeout(100);
  }
}

scenario("the overview shows an hour of three deployments", async (it) => {
  const { page } = it;
  await show(it, "/");
  for (const name of ["support", "refunds", "research"]) await page.getByRole("link", { name, exact: true }).first().waitFor();
  await page.getByRole("figure", { name: "Tokens" }).locator("canvas").waitFor();
  await page.getByRole("region", { name: "Pools" }).getByText("default").waitFor();
  await it.picture("overview");
});

scenario("a deployment's page says who changed what", async (it) => {
  const { page, deployments } = it;
  await show(it, `/deployments/${deployments.support}`);
  await page.getByRole("row").filter({ hasText: "Ann Miller" }).getByText("CARRIER_KEY").waitFor();
  await page.getByRole("row").filter({ hasText: "CI" }).first().waitFor();
  await it.picture("deployment");
});

scenario("a chat's tools are folded, and the node that answers is lit", async (it) => {
  const { page } = it;
  await pause(it);
  await show(it, "/d/support/playground/support");
  await page.getByRole("textbox", { name: "Message", exact: true }).fill("When does my order 1042 arrive?");
  await page.keyboard.press("Enter");
  await page.locator(".message.ai", { hasText: "due tomorrow before noon" }).waitFor();
  await page.locator("[data-node=agent][data-state=active]").waitFor();
  await page.locator("[data-node=tools][data-state=done]").waitFor();
  await it.picture("playground");
  await it.check();
  await goOn(it);
  await page.locator(".message.ai", { hasText: "together with the lamps?" }).waitFor();
});

scenario("a refund waits for an answer", async (it) => {
  const { page, deployments } = it;
  await show(it, `/d/refunds/playground/approval?thread=${deployments.refund}`);
  await page.locator(".question", { hasText: "Pay this refund?" }).waitFor();
  await page.locator("[data-node=review][data-state=asking]").waitFor();
  await it.picture("question");
});

scenario("a thread shows what each step changed", async (it) => {
  const { page, deployments } = it;
  await show(it, `/d/support/threads/${deployments.thread}`);
  const checkpoints = page.getByRole("listbox", { name: "Checkpoints, newest first" });
  await checkpoints.getByRole("option").filter({ hasText: "tools" }).last().click();
  await page.getByRole("list", { name: "Changed values" }).getByText("find_order").first().waitFor();
  await it.picture("thread");
});

scenario("runs that run, wait, and failed are listed with why", async (it) => {
  const { page } = it;
  await pause(it);
  await start(it, "Has order 1120 left?");
  await start(it, "It is for a birthday.");
  await show(it, "/d/support/runs");
  await page.getByText("waits for an earlier run of its thread").first().waitFor();
  await page.getByRole("row").filter({ hasText: "running" }).first().waitFor();
  await page.getByText("the warehouse did not answer").first().waitFor();
  await it.picture("runs");
  await it.check();
  await goOn(it);
  await idle(it);
});

scenario("a run's nodes are shown over time", async (it) => {
  const { page, deployments } = it;
  await show(it, `/d/research/runs/${deployments.research}`);
  const line = page.getByRole("tree", { name: "Timeline of the run" });
  await line.getByRole("treeitem", { name: /^node write / }).waitFor();
  assert.equal(await line.getByRole("treeitem", { name: /^node investigate / }).count(), 3);
  await it.picture("run");
});

scenario("what was used is shown by day", async (it) => {
  const { page } = it;
  await show(it, "/usage?by=day,deployment,model");
  await page.getByRole("region", { name: "Usage" }).getByText("gpt-5-mini").first().waitFor();
  await page.getByRole("figure", { name: "Tokens per day" }).locator("canvas").waitFor();
  await it.picture("usage");
});

scenario("workers are shown with their graph hosts", async (it) => {
  const { page } = it;
  await show(it, "/workers");
  await page.getByRole("region", { name: "Graph hosts" }).getByRole("link", { name: "support" }).last().waitFor();
  await it.picture("workers");
});
