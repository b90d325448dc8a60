// What runs, waits and failed: why, and what can be done about it; a run's page.

import { createServer } from "node:http";
import { assert, scenario, until } from "./harness.mjs";

const at = (it, path) => `/d/${it.deployments.kitchen}${path}`;
const thread = async (it) => (await it.api("POST", at(it, "/threads"), {})).thread_id;
const start = (it, id, body) => it.api("POST", at(it, `/threads/${id}/runs`), body);
const runOf = (it, run) => it.api("GET", at(it, `/threads/${run.thread_id}/runs/${run.run_id}`));
const pageOf = (it, run) => at(it, `/runs/${run.thread_id}/${run.run_id}`);

const line = (page) => page.getByRole("tree", { name: "Timeline of the run" });

async function ended(it, run) {
  await until(async () => !["pending", "running"].includes((await runOf(it, run)).status), "the run ended");
  return runOf(it, run);
}

scenario("what waits says why, what runs is cancelled", async (it) => {
  const { page, open } = it;
  const id = await thread(it);
  const first = await start(it, id, { assistant_id: "sleeps", input: {}, stream_mode: ["custom"] });
  const second = await start(it, id, { assistant_id: "sleeps", input: {} });
  await open(at(it, `/runs?thread=${id}`));
  await page.getByText("waits for an earlier run of its thread").first().waitFor();
  const running = page.getByRole("row").filter({ hasText: "running" });
  await running.waitFor();
  await page.getByRole("combobox", { name: "Status", exact: true }).selectOption("pending");
  await page.getByText("1 run", { exact: true }).waitFor();
  await page.getByLabel(new RegExp(`Choose run sleeps · .*, ${second.run_id.slice(-8)}`)).check();
  await page.getByRole("button", { name: "Cancel 1…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel", exact: true }).last().click();
  assert.equal((await ended(it, second)).status, "interrupted");
  await open(pageOf(it, first));
  await page.getByText("live").first().waitFor();
  await page.getByRole("button", { name: "Cancel…" }).click();
  await it.check();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel", exact: true }).click();
  assert.equal((await ended(it, first)).status, "interrupted");
  await page.getByRole("button", { name: "Retry from the last checkpoint" }).waitFor();
});

scenario("a failed run says why, and runs again from its last checkpoint", async (it) => {
  const { page, open } = it;
  const id = await thread(it);
  const failed = await start(it, id, { assistant_id: "fails", input: {} });
  await ended(it, failed);
  await open(at(it, `/runs?thread=${id}&error=ValueError`));
  await page.getByText("ValueError: boom happened").waitFor();
  await page.getByTitle(failed.run_id, { exact: true }).click();
  await page.getByText("boom happened").first().waitFor();
  await line(page).getByRole("treeitem", { name: /^node boom .*failed$/ }).waitFor();
  await page.getByRole("button", { name: "Retry from the last checkpoint" }).click();
  await page.waitForURL((url) => !url.href.includes(failed.run_id));
  await page.getByText("Retry of").waitFor();
  const [newest] = await it.api("GET", at(it, `/threads/${id}/runs`));
  assert.equal(newest.metadata.retry_of, failed.run_id);
  await ended(it, newest);
  it.allow(/status of 409/);
  await open(pageOf(it, failed));
  await page.getByRole("button", { name: "Retry from the last checkpoint" }).click();
  await page.getByRole("heading", { name: "The thread has changed" }).waitFor();
  await page.getByRole("button", { name: "Fork and retry" }).click();
  await page.waitForURL((url) => !url.href.includes(failed.run_id));
  assert.equal((await it.api("GET", at(it, `/threads/${id}/runs`))).length, 3);
});

scenario("all runs that match are retried, after a dry run", async (it) => {
  const { page, open } = it;
  const [batch, id] = [it.unique("batch"), await thread(it)];
  for (const on of [id, id, await thread(it)]) await ended(it, await start(it, on, { assistant_id: "fails", input: {}, metadata: { batch } }));
  await open(at(it, `/runs?metadata=batch%3D${batch}`));
  await page.getByText("3 runs", { exact: true }).waitFor();
  await page.getByRole("button", { name: "Retry matching runs…" }).click();
  const dialog = page.getByRole("dialog", { name: "Retry matching runs" });
  await dialog.getByText("3 runs match.").waitFor();
  await dialog.getByText("error, timeout, interrupted").waitFor();
  assert.equal(await dialog.getByRole("listitem").count(), 3);
  await dialog.getByLabel("Runs per second").fill("50");
  await it.check();
  await dialog.getByRole("button", { name: "Retry 3 runs" }).click();
  await page.getByRole("heading", { name: "Retry of 3 runs" }).waitFor();
  await page.getByText("3 of 3: 2 done, 1 skipped").waitFor();
  await page.getByText("done", { exact: true }).first().waitFor();
  await page.getByRole("combobox", { name: "Outcome" }).selectOption("skipped");
  await page.getByRole("row").filter({ hasText: "force" }).waitFor();
  await page.getByRole("link", { name: /^Run\s/ }).nth(1).waitFor({ state: "detached" });
  await page.getByRole("link", { name: "Bulk operations" }).click();
  await page.getByRole("row").filter({ hasText: `batch=${batch}` }).getByText("3 of 3: 2 done, 1 skipped").waitFor();
});

scenario("a bulk operation is stopped", async (it) => {
  const { page, open } = it;
  const [batch, id] = [it.unique("batch"), await thread(it)];
  const waiting = [];
  for (let n = 0; n < 4; n++) waiting.push(await start(it, id, { assistant_id: "sleeps", input: {}, after_seconds: 3_600, metadata: { batch } }));
  await open(at(it, `/runs?metadata=batch%3D${batch}&status=pending`));
  await page.getByText("4 runs", { exact: true }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Retry matching runs…" }).count(), 0);
  await page.getByRole("button", { name: "Cancel matching runs…" }).click();
  const dialog = page.getByRole("dialog", { name: "Cancel matching runs" });
  await dialog.getByLabel("Runs per second").fill("1");
  await dialog.getByRole("button", { name: "Cancel 4 runs" }).click();
  await page.getByRole("heading", { name: "Cancellation of 4 runs" }).waitFor();
  await page.getByRole("button", { name: "Stop…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Stop", exact: true }).click();
  await page.getByRole("button", { name: "Stop…" }).waitFor({ state: "detached" });
  await page.getByText("cancelled", { exact: true }).first().waitFor();
  assert.ok((await runOf(it, waiting.at(-1))).status === "pending");
  await it.api("POST", at(it, "/runs/cancel"), { thread_id: id, run_ids: waiting.map(({ run_id }) => run_id) });
});

scenario("a run that asked waits for an answer until there is one", async (it) => {
  const { page, open } = it;
  const id = await thread(it);
  const asked = await start(it, id, { assistant_id: "asks", input: {} });
  await ended(it, asked);
  await open(at(it, `/runs?thread=${id}`));
  await page.getByRole("row").getByText("waits for an answer").waitFor();
  assert.equal(await page.getByRole("link", { name: "waits for an answer" }).getAttribute("href"), `#/inbox?thread=${id}`);
  await page.getByTitle(asked.run_id, { exact: true }).click();
  await line(page).getByRole("treeitem", { name: /^node ask .*interrupted$/ }).waitFor();
  await line(page).getByRole("treeitem", { name: /^person .*waiting$/ }).waitFor();
  await page.getByText("for an answer to its question").waitFor();
  assert.equal(await page.getByRole("link", { name: "Continue in the playground" }).getAttribute("href"), `#/d/${it.deployments.kitchen}/playground/asks?thread=${id}`);
  await it.check();
  const answer = await start(it, id, { assistant_id: "asks", command: { resume: "yes" } });
  await ended(it, answer);
  await page.getByText("waits for an answer").waitFor({ state: "detached" });
  await open(pageOf(it, answer));
  await line(page).getByRole("treeitem", { name: /^node after / }).waitFor();
  assert.equal(await line(page).getByRole("treeitem", { name: /^node before / }).count(), 0);
  await line(page).getByRole("treeitem", { name: /^person / }).click();
  await page.getByRole("region", { name: "Answer" }).getByText("yes").waitFor();
});

scenario("a timeline shows a subgraph, a tool call and the wait for a person", async (it) => {
  const { page, open } = it;
  const id = await thread(it);
  const asking = await start(it, id, { assistant_id: "plans", input: { text: "sea" } });
  await ended(it, asking);
  await open(pageOf(it, asking));
  const items = line(page).getByRole("treeitem");
  const labels = async (tree) => (await tree.getByRole("treeitem").evaluateAll((rows) => rows.map((row) => `${row.ariaLevel} ${row.dataset.kind} ${row.querySelector(".timeline-name").title}`)));
  await items.filter({ hasText: "look_up" }).waitFor();
  assert.deepEqual(await labels(line(page)), [
    "1 queue Waits in the queue", "1 attempt Attempt 1", "2 claim Claim", "2 host_start Graph host",
    "2 node work", "3 node research", "4 tool look_up", "3 node draft", "4 model GenericFakeChatModel", "2 node ask", "1 person Waits for a person",
  ]);
  await items.filter({ hasText: "look_up" }).click();
  await page.getByText("These are those of the node").waitFor();
  await page.getByRole("region", { name: "What the node wrote" }).getByText("sea means something").waitFor();
  await it.check();
  await line(page).focus();
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Show all" }).click();
  await page.getByRole("button", { name: "Collapse nodes" }).click();
  await items.filter({ hasText: "look_up" }).waitFor({ state: "detached" });
  const answering = await start(it, id, { assistant_id: "plans", command: { resume: "yes" } });
  await ended(it, answering);
  await open(at(it, `/threads/${id}?tab=timeline`));
  const whole = page.getByRole("tree", { name: "Timeline of the thread" });
  await whole.getByRole("treeitem", { name: /^node after / }).waitFor();
  const shown = await labels(whole);
  assert.equal(shown.filter((label) => label.includes("person")).length, 1);
  assert.equal(shown.filter((label) => label.includes("attempt")).length, 2);
  await whole.getByRole("treeitem", { name: /^person / }).click();
  await page.getByRole("region", { name: "Answer" }).getByText("yes").waitFor();
});

scenario("a run's traceback is in its log, and no other run's lines are", async (it) => {
  const { page, open } = it;
  const id = await thread(it);
  await ended(it, await start(it, id, { assistant_id: "prints", input: { n: 2 } }));
  const failed = await start(it, id, { assistant_id: "fails", input: {} });
  await ended(it, failed);
  await open(pageOf(it, failed));
  await page.getByRole("button", { name: "Show the traceback in the log" }).click();
  const log = page.getByRole("log");
  await until(async () => {
    if (await log.getByText("ValueError: boom happened").first().isVisible()) return true;
    await page.reload(); // what was logged lately is not shown before it settled
    await page.waitForTimeout(500);
    return false;
  }, "the traceback is there");
  assert.ok(!(await log.innerText()).includes("hello from the kitchen"));
});

scenario("events are shown while they come, and after", async (it) => {
  const { page, open } = it;
  const id = await thread(it);
  const run = await start(it, id, { assistant_id: "writes", input: { n: 3000, seconds: 0.002 }, stream_mode: ["custom", "values"] });
  await open(`${pageOf(it, run)}?tab=events`);
  const events = page.getByRole("listbox", { name: "Events" });
  await events.getByText("{i: ").first().waitFor();
  await until(async () => {
    await events.evaluate((box) => { box.scrollTop = 0; });
    return events.getByText("run_id: ").isVisible();
  }, "who scrolls up reads from the start");
  await ended(it, run);
  await page.getByText("success").waitFor();
  await page.getByText(/^3,00\d events$/).waitFor();
  assert.ok((await events.getByRole("option").count()) < 80);
  await page.getByLabel("Events of one kind").selectOption("values");
  await page.getByText(/^2 events$/).waitFor();
  await events.getByRole("option").last().click();
  await page.getByRole("region", { name: "Event" }).getByText("written").waitFor();
  await page.reload();
  await page.getByText(/^3,00\d events$/).waitFor();
});

scenario("attempts that were lost say why", async (it) => {
  const { page, open } = it;
  const run = await start(it, await thread(it), { assistant_id: "dies", input: { file: it.unique("died") } });
  assert.equal((await ended(it, run)).status, "success");
  await open(`${pageOf(it, run)}?tab=attempts`);
  const rows = page.getByRole("table").getByRole("row");
  await rows.nth(2).waitFor();
  assert.equal(await rows.count(), 3);
  assert.match(await rows.last().innerText(), /2[^]*success/);
  const { attempts } = await runOf(it, run);
  assert.ok((await rows.nth(1).innerText()).includes(attempts[0].reason));
});

scenario("input, output and nodes are there after the run", async (it) => {
  const { page, open, isNarrow } = it;
  const run = await start(it, await thread(it), { assistant_id: "speaks", input: { messages: [{ role: "user", content: "hi <b>you</b>" }] } });
  await ended(it, run);
  await open(pageOf(it, run));
  await line(page).getByRole("treeitem", { name: /^node speak / }).waitFor();
  await page.getByRole("tab", { name: "Input and output" }).click();
  await page.getByRole("region", { name: "Input" }).getByText("hi <b>you</b>").waitFor();
  await page.getByRole("region", { name: "Output" }).getByText("hello big world").waitFor();
  await page.getByRole("tab", { name: "Timeline" }).click();
  await line(page).getByRole("treeitem", { name: /^node speak / }).click();
  await page.getByRole("region", { name: "What the node wrote" }).getByText("hello big world").waitFor();
  await page.getByRole("link", { name: "Open the checkpoint" }).click();
  await page.getByRole("listbox", { name: "Checkpoints, newest first" }).waitFor();
  if (!isNarrow) await page.goBack();
});

scenario("tokens are told by model", async (it) => {
  const { page, open } = it;
  const run = await start(it, await thread(it), { assistant_id: "consumes", input: { text: "a" } });
  const { usage } = await ended(it, run);
  const [[model, { total_tokens: tokens }]] = Object.entries(usage);
  await open(pageOf(it, run));
  const told = page.getByRole("region", { name: "Tokens and cost" });
  await told.getByText(model).waitFor();
  assert.ok((await told.innerText()).includes(String(tokens)));
  await told.getByText("no price is set").waitFor();
});

scenario("feedback on a run shows what was said, and nothing for what was not", async (it) => {
  const { page, open, api, deployments: { kitchen } } = it;
  const run = await start(it, await thread(it), { assistant_id: "consumes", input: { text: "a" } });
  await ended(it, run);
  await api("POST", `/d/${kitchen}/runs/${run.run_id}/feedback`, { key: "polite", score: 1 / 3, comment: "Very" });
  await open(pageOf(it, run));
  const said = page.getByRole("region", { name: "Feedback", exact: true }).last();
  await said.getByText("Very").waitFor();
  assert.deepEqual((await said.locator("tbody td").allTextContents()).slice(0, 5), ["polite", "0.3333", "", "Very", ""]);
});

scenario("a run's webhook tells what became of it, and is sent again", async (it) => {
  const { page, open } = it;
  let calls = 0;
  const receiver = createServer((request, response) => {
    request.resume();
    request.on("end", () => { calls++; response.end(); });
  });
  await new Promise((ready) => receiver.listen(0, "127.0.0.1", ready));
  try {
    const webhook = `http://127.0.0.1:${receiver.address().port}/told?secret=x`;
    const run = await start(it, await thread(it), { assistant_id: "echo", input: { text: "a" }, webhook });
    await ended(it, run);
    await until(() => calls === 1, "it was called");
    await open(`${pageOf(it, run)}?tab=webhooks`);
    await page.getByText("delivered").waitFor();
    assert.ok(!(await page.getByRole("table").innerText()).includes("secret=x"));
    await page.getByRole("button", { name: "Send again" }).click();
    await until(() => calls === 2, "it was called again");
  } finally {
    receiver.close();
  }
});

scenario("who may only read sees runs, and cancels none", async (it) => {
  const { page, open } = it;
  const id = await thread(it);
  const run = await start(it, id, { assistant_id: "fails", input: {} });
  await ended(it, run);
  const key = await it.keyOf("read");
  await open(at(it, `/runs?thread=${id}`), { key });
  await page.getByText("ValueError: boom happened").waitFor();
  assert.equal(await page.getByRole("button", { name: "Retry" }).count(), 0);
  await page.getByRole("link", { name: "Bulk operations" }).click();
  await page.getByRole("heading", { name: "Bulk operations" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Stop" }).count(), 0);
  await open(pageOf(it, run), { key });
  await page.getByText("boom happened").first().waitFor();
  assert.equal(await page.getByRole("button", { name: /Retry|Cancel/ }).count(), 0);
});
