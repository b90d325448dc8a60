// Replays of past runs: their start, their verdict, and the two sides of a case.

import { assert, scenario, until } from "./harness.mjs";

const at = (it, path) => `/d/${it.deployments.kitchen}${path}`;
const rows = (page) => page.getByRole("region", { name: "Cases" }).getByRole("row");

/** An ended run on a thread of its own. */
async function pastRun(it, batch, body) {
  const { thread_id } = await it.api("POST", at(it, "/threads"), {});
  const run = await it.api("POST", at(it, `/threads/${thread_id}/runs`), { ...body, metadata: { batch } });
  await until(async () => !["pending", "running"].includes((await it.api("GET", at(it, `/threads/${thread_id}/runs/${run.run_id}`))).status), "the run ended");
  return run;
}

async function startReplay(it, body) {
  const { resources: [{ id }] } = await it.api("GET", `/v2/deployments?name=${it.deployments.kitchen}`);
  return it.api("POST", `/v2/deployments/${id}/replays`, body);
}

scenario("past runs are replayed, and a case shows both sides", async (it) => {
  const { page, open } = it;
  const batch = it.unique("batch"), visitor = it.unique("visitor");
  await pastRun(it, batch, { assistant_id: "speaks", input: { messages: [{ role: "user", content: "hi" }] } });
  const remembered = await pastRun(it, batch, { assistant_id: "remembers", input: { text: visitor } });
  await pastRun(it, batch, { assistant_id: "fails", input: {} });
  await open(at(it, "/replays"));
  await page.getByRole("button", { name: "New replay…" }).click();
  const dialog = page.getByRole("dialog", { name: "New replay" });
  await dialog.getByLabel("Metadata").fill(`batch=${batch}`);
  await dialog.getByLabel("The replay fails if").fill("typos>0");
  await it.check();
  it.allow(/status of 422/);
  await dialog.getByRole("button", { name: "Start the replay" }).click();
  await dialog.getByRole("alert").filter({ hasText: "unknown metric 'typos'" }).first().waitFor();
  await dialog.getByLabel("The replay fails if").fill("errors>5, changed>0");
  await dialog.getByRole("button", { name: "Start the replay" }).click();
  await page.getByRole("heading", { name: /on 3 past runs/ }).waitFor();
  const verdict = page.getByRole("region", { name: "Verdict" });
  await verdict.getByText("1 of 2 conditions are met.").waitFor();
  await verdict.getByRole("row").filter({ hasText: "errors>5" }).getByText("ok").waitFor();
  await it.check();
  await until(async () => (await rows(page).count()) === 4, "each case has a row");
  await page.getByRole("combobox", { name: "Outcome" }).selectOption("changed");
  await until(async () => (await rows(page).count()) === 2, "only the changed case is shown");
  await page.getByRole("link", { name: /^Case\s\d$/ }).click();
  const differences = page.getByRole("region", { name: "Differences" });
  await differences.getByRole("row").filter({ hasText: "log.0" }).getByText("changed").waitFor();
  assert.equal(await page.getByRole("link", { name: "Original run" }).getAttribute("href"), `#${at(it, `/runs/${remembered.thread_id}/${remembered.run_id}`)}`);
  await page.getByRole("tab", { name: /^Steps/ }).click();
  await page.getByRole("table", { name: "Steps of both sides" }).getByText("remember", { exact: true }).first().waitFor();
  await page.getByRole("tab", { name: "Final values" }).click();
  await page.getByRole("region", { name: "Replay" }).getByText("log").first().waitFor();
  await it.check();
  await page.getByRole("link", { name: "Thread of the case" }).click();
  await page.getByRole("listbox", { name: "Checkpoints, newest first" }).waitFor();
  await page.getByRole("region", { name: "Checkpoint" }).waitFor();
  assert.equal(await page.getByRole("button", { name: /Delete|Copy|Rename|Edit and fork/ }).count(), 0);
  const { value } = await it.api("GET", at(it, `/store/items?namespace=visits.${visitor}&key=count`));
  assert.equal(value.n, 1);
});

scenario("messages of both sides stand beside each other", async (it) => {
  const { page, open } = it;
  const batch = it.unique("batch");
  await pastRun(it, batch, { assistant_id: "speaks", input: { messages: [{ role: "user", content: "hi <b>you</b>" }] } });
  const replay = await startReplay(it, { where: { metadata: { batch } } });
  await open(at(it, `/replays/${replay.id}/1?tab=messages`));
  const messages = page.getByRole("table", { name: "Messages of both sides" });
  await messages.getByText("hi <b>you</b>").nth(1).waitFor();
  await page.getByText("same", { exact: true }).first().waitFor();
  await page.getByRole("tab", { name: "Differences (0)" }).click();
  await page.getByText("The final values are equal, except for ids and times.").waitFor();
});

scenario("a replay is cancelled and deleted, and one without runs says so", async (it) => {
  const { page, open } = it;
  const none = await startReplay(it, { where: { metadata: { batch: it.unique("none") } }, fail_on: "errors>0" });
  await open(at(it, `/replays/${none.id}`));
  await page.getByRole("heading", { name: "No past run matches the filters" }).waitFor();
  await page.getByText("Not judged.").waitFor();
  const past = await pastRun(it, it.unique("batch"), { assistant_id: "echo", input: { text: "a" } });
  const replay = await startReplay(it, { where: { run_ids: [past.run_id] }, fail_on: "errors>0" });
  await it.api("POST", `/v2/deployments/${replay.deployment_id}/replays/${replay.id}/cancel`);
  await open(at(it, `/replays/${replay.id}`));
  await page.getByRole("region", { name: "Verdict" }).waitFor();
  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await page.waitForURL((url) => url.hash === `#${at(it, "/replays")}`);
  await page.getByRole("link", { name: /past runs?$/ }).first().waitFor();
  it.allow(/status of 404/);
  await open(at(it, `/replays/${replay.id}`));
  await page.getByRole("alert").first().waitFor();
});

scenario("who may only read sees replays, and starts none", async (it) => {
  const { page, open } = it;
  const batch = it.unique("batch");
  await pastRun(it, batch, { assistant_id: "echo", input: { text: "a" } });
  const replay = await startReplay(it, { where: { metadata: { batch } } });
  const key = await it.keyOf("read");
  await open(at(it, "/replays"), { key });
  await page.getByRole("link", { name: /past runs?$/ }).first().waitFor();
  assert.equal(await page.getByRole("button", { name: /replay/i }).count(), 0);
  await open(at(it, `/replays/${replay.id}`), { key });
  await page.getByRole("heading", { name: /on 1 past run$/ }).waitFor();
  await page.getByText("Report.").waitFor();
  assert.equal(await page.getByRole("button", { name: /Replay again|Cancel|Delete/ }).count(), 0);
});
