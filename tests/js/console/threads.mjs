// Finding threads, looking at what their checkpoints changed, editing, forking and replaying them.

import { assert, scenario, until } from "./harness.mjs";

const at = (it, path) => `/d/${it.deployments.kitchen}${path}`;

/** A thread on which a graph has run, if one is named. */
async function threadOf(it, graph, input = {}, metadata = {}) {
  const { thread_id: id } = await it.api("POST", at(it, "/threads"), { metadata });
  if (graph) await it.api("POST", at(it, `/threads/${id}/runs/wait`), { assistant_id: graph, input });
  return id;
}

const checkpoints = (page) => page.getByRole("listbox", { name: "Checkpoints, newest first" });
const option = (page, text) => checkpoints(page).getByRole("option").filter({ hasText: text });
const changes = (page) => page.getByRole("list", { name: "Changed values" });
const status = async (it, id) => (await it.api("GET", at(it, `/threads/${id}`))).status;

scenario("threads are searched, and the address keeps what for", async (it) => {
  const { page, open } = it;
  const topic = it.unique("topic");
  const mine = await threadOf(it, "echo", { text: topic }, { topic });
  await threadOf(it, null, {}, { topic: it.unique("other") });
  await open(at(it, "/threads"));
  await page.getByLabel("Metadata").fill(`topic=${topic}`);
  await page.keyboard.press("Enter");
  await page.getByText("1 thread found").waitFor();
  await page.getByRole("link", { name: `Thread ${mine.slice(-8)}` }).waitFor();
  await it.check();
  await page.reload();
  await page.getByText("1 thread found").waitFor();
  await page.getByLabel("Values").fill("text=something else");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "No thread matches" }).waitFor();
  await page.getByLabel("Values").fill(`{"text": "${topic}"}`);
  await page.keyboard.press("Enter");
  await page.getByRole("combobox", { name: "Updated", exact: true }).selectOption("1h");
  await page.getByRole("combobox", { name: "Status", exact: true }).selectOption("idle");
  await page.getByText("1 thread found").waitFor();
  assert.match(page.url(), /metadata=topic.*status=idle/);
  await page.getByLabel("Metadata").fill("topic");
  await page.keyboard.press("Enter");
  await page.getByText("neither key=value nor JSON").waitFor();
});

scenario("each step shows its node and what it changed", async (it) => {
  const { page, open } = it;
  const id = await threadOf(it, "counts", { n: 2, seconds: 0 });
  await open(at(it, `/threads/${id}`));
  await page.getByText("4 checkpoints, newest first").waitFor();
  await changes(page).getByText("log[1]").waitFor();
  await option(page, "start").click();
  await changes(page).getByText("added").first().waitFor();
  assert.match(await changes(page).innerText(), /n\s*2/);
  assert.match(page.url(), /checkpoint=/);
  await checkpoints(page).focus();
  await page.keyboard.press("ArrowUp");
  await changes(page).getByText("log[0]").waitFor();
  await page.getByRole("tab", { name: "State" }).click();
  await page.getByText("1 item").waitFor();
  await page.reload();
  await page.getByText("1 item").waitFor();
  await page.getByRole("tab", { name: "Runs" }).click();
  await page.getByRole("table").getByText("success").waitFor();
});

scenario("a state is edited at a checkpoint, and the fork runs on", async (it) => {
  const { page, open } = it;
  const id = await threadOf(it, "counts", { n: 2, seconds: 0 });
  await open(at(it, `/threads/${id}`));
  await option(page, "count").last().click();
  await changes(page).getByText("log[0]").waitFor();
  await page.getByRole("button", { name: "Edit and fork…" }).click();
  const dialog = page.getByRole("dialog");
  const editor = dialog.getByLabel("Values");
  const values = JSON.parse(await editor.inputValue());
  await editor.fill("{");
  await dialog.getByText(/Line 1/).waitFor();
  await editor.fill(JSON.stringify({ ...values, n: 3 }));
  await dialog.getByText("Writes").waitFor();
  await dialog.getByLabel("As if written by").selectOption("count");
  await it.check();
  await dialog.getByRole("button", { name: "Save and run" }).click();
  await dialog.waitFor({ state: "detached" });
  await until(async () => (await it.api("GET", at(it, `/threads/${id}/state`))).values.log.length === 3, "it ran on");
  await option(page, "update").waitFor();
  await page.getByText("7 checkpoints").waitFor();
  const { values: kept } = await it.api("GET", at(it, `/threads/${id}/state`));
  assert.deepEqual([kept.n, kept.log], [3, [0, 1, 2]]);
});

scenario("a node that a Command(goto) chose is run after an edit, and nothing else is announced", async (it) => {
  const { page, open } = it;
  const id = await threadOf(it, "goes");
  const runs = async () => (await it.api("GET", at(it, `/threads/${id}/runs`))).length;
  const edit = async (text) => {
    await page.getByRole("button", { name: "Edit and fork…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Values").fill(JSON.stringify({ log: [text] }));
    await dialog.getByText("Writes").waitFor();
    await dialog.getByRole("button", { name: "Save and run" }).click();
  };
  await open(at(it, `/threads/${id}`));
  await option(page, "choose").click();
  await changes(page).getByText("log[0]").waitFor();
  await edit("edited");
  await page.getByRole("heading", { name: "Run after?" }).waitFor();
  await it.check();
  await page.getByRole("button", { name: "Run after", exact: true }).click();
  await page.getByText("Saved, and a new run was started with after").waitFor();
  const log = async () => (await it.api("GET", at(it, `/threads/${id}/state`))).values.log;
  await until(async () => (await log()).at(-1) === "after", "it ran on");
  assert.deepEqual(await log(), ["chosen", "edited", "after"]);
  await until(async () => (await status(it, id)) === "idle", "the run ended");
  await page.getByText(/[67] checkpoints/).waitFor(); // LangGraph for JavaScript stores one for the command too
  await changes(page).getByText("log[2]").waitFor();
  await edit("last");
  await page.getByText("No run was started, because no node follows the changed state.").waitFor();
  assert.equal(await runs(), 2);
});

scenario("a state that was saved without a run says so", async (it) => {
  const { page, open } = it;
  it.allow(/status of 409/);
  const id = await threadOf(it, "counts", { n: 2, seconds: 0 });
  await open(at(it, `/threads/${id}`));
  await option(page, "count").last().click();
  await changes(page).getByText("log[0]").waitFor();
  await page.route(/\/runs$/, (route) => (route.request().method() === "POST" ? route.fulfill({ status: 409, json: { detail: "The queue is full." } }) : route.fallback()));
  await page.getByRole("button", { name: "Edit and fork…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("As if written by").selectOption("count");
  await dialog.getByRole("button", { name: "Save and run" }).click();
  await page.getByText("The state was saved, but no run was started: The queue is full.").waitFor();
  await option(page, "update").waitFor();
  assert.equal((await it.api("GET", at(it, `/threads/${id}/runs`))).length, 1);
});

scenario("a run is replayed from a checkpoint", async (it) => {
  const { page, open } = it;
  const id = await threadOf(it, "counts", { n: 2, seconds: 0 });
  await open(at(it, `/threads/${id}`));
  await option(page, "count").last().click();
  await page.getByRole("button", { name: "Replay from here" }).click();
  await page.getByText("A new run continues from this checkpoint").waitFor();
  await option(page, "fork").waitFor();
  await until(async () => (await status(it, id)) === "idle", "the run ended");
  assert.equal((await it.api("GET", at(it, `/threads/${id}/runs`))).length, 2);
});

scenario("a thread is called by its first message everywhere, and renamed in place", async (it) => {
  const { page, open } = it;
  const said = `${it.unique("order")} <b>late</b>`;
  const id = await threadOf(it, "speaks", { messages: [{ role: "user", content: said }] });
  await open(at(it, "/threads"));
  await page.getByRole("link", { name: said, exact: true }).click();
  await page.getByRole("heading", { name: said, level: 1 }).waitFor();
  await until(async () => (await page.title()) === `${said} – runyard`, "the document has the title");
  await page.getByRole("button", { name: "Rename the thread" }).click();
  const title = it.unique("late order");
  await page.getByLabel("Title of the thread").fill(title);
  await it.check();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: title, level: 1 }).waitFor();
  assert.equal((await it.api("GET", at(it, `/threads/${id}`))).metadata.title, title);
  await open(at(it, `/runs?thread=${id}`));
  await page.getByRole("link", { name: title }).waitFor();
  await page.getByRole("link", { name: /^speaks · \d\d:\d\d/ }).waitFor();
  await page.getByRole("link", { name: title }).click();
  await page.getByRole("button", { name: "Rename the thread" }).click();
  await page.getByLabel("Title of the thread").fill("");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("heading", { name: said, level: 1 }).waitFor();
});

scenario("a thread shows its steps while a run goes on", async (it) => {
  const { page, open } = it;
  const { thread_id: id } = await it.api("POST", at(it, "/threads"), {});
  await it.api("POST", at(it, `/threads/${id}/runs`), { assistant_id: "counts", input: { n: 6, seconds: 1 } });
  await open(at(it, `/threads/${id}`));
  await page.getByRole("status").filter({ hasText: "live" }).waitFor();
  await option(page, "count").first().waitFor();
  await page.getByText("8 checkpoints, newest first").waitFor();
  await page.getByText("idle").waitFor();
  await changes(page).getByText("log[5]").waitFor();
});

scenario("a thread that asks leads to where it is answered", async (it) => {
  const { page, open } = it;
  const id = await threadOf(it, "asks");
  await open(at(it, `/threads/${id}`));
  await page.getByRole("heading", { name: "Waits for an answer" }).waitFor();
  await page.getByText("may I?").first().waitFor();
  await option(page, "before then ask waits for an answer").waitFor();
  await page.getByRole("tab", { name: "Runs" }).click();
  await page.getByRole("row").getByText("waits for an answer").waitFor();
  assert.equal(await page.getByRole("link", { name: "Answer in the inbox" }).getAttribute("href"), `#/inbox?thread=${id}`);
  const link = await page.getByRole("link", { name: "Answer in the playground" }).getAttribute("href");
  assert.equal(link, `#/d/${it.deployments.kitchen}/playground/asks?thread=${id}`);
});

scenario("a thread is copied and deleted, several at once too", async (it) => {
  const { page, open } = it;
  const topic = it.unique("gone");
  const first = await threadOf(it, "echo", { text: "a" }, { topic });
  await open(at(it, `/threads/${first}`));
  await page.getByRole("button", { name: "Copy", exact: true }).first().click();
  await page.waitForURL((url) => !url.href.includes(first));
  await page.getByText("3 checkpoints").waitFor();
  await page.getByRole("button", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByText("Thread deleted").waitFor();
  await threadOf(it, null, {}, { topic });
  await open(at(it, `/threads?metadata=topic%3D${topic}`));
  await page.getByText("2 threads found").waitFor();
  await page.getByLabel("Choose all threads of this page").check();
  await page.getByRole("button", { name: "Delete 2…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await page.getByRole("heading", { name: "No thread matches" }).waitFor();
});

scenario("a thread of a thousand checkpoints is read as one looks at it", async (it) => {
  const { page, open } = it;
  const id = await threadOf(it, "counts", { n: 1000, seconds: 0 });
  await open(at(it, `/threads/${id}`));
  await page.getByText("100+ checkpoints").waitFor();
  await until(async () => {
    await checkpoints(page).evaluate((box) => { box.scrollTop = box.scrollHeight; });
    return page.getByText("1,002 checkpoints").isVisible();
  }, "all are read");
  await option(page, "input").waitFor();
  assert.ok((await checkpoints(page).getByRole("option").count()) < 80);
});

scenario("what is stored stays text, however large", async (it) => {
  const { page, open } = it;
  page.on("dialog", () => page.evaluate(() => console.error("something stored was executed")));
  const evil = '<img src=x onerror="alert(1)"><script>alert(2)</script>';
  const message = { role: "user", content: `${evil}\n[x](javascript:alert(3))` };
  const id = await threadOf(it, "echo", { text: evil + "A".repeat(1_000_000), how: "\u001b]0;title\u0007\u001b[31mred", log: Array.from({ length: 10_000 }, (_, n) => n) }, { [evil]: evil });
  await open(at(it, `/threads/${id}`));
  await option(page, "start").click();
  await changes(page).getByText("text").first().waitFor();
  await page.getByRole("tab", { name: "State" }).click();
  await page.getByText("1,000,").waitFor();
  await page.getByRole("button", { name: "[10000]" }).click();
  await page.locator(".json-line").nth(40).waitFor();
  assert.ok((await page.locator(".json-line").count()) < 400);
  assert.ok(!(await page.locator("main").innerText()).includes("\u001b"));
  await page.getByRole("tab", { name: "Metadata" }).first().click();
  await page.getByText("onerror").first().waitFor();
  const chat = await threadOf(it, "speaks", { messages: [message] });
  await open(at(it, `/threads/${chat}?part=state`));
  await page.getByRole("tabpanel", { name: "State" }).getByText("javascript:alert(3)").waitFor();
  await page.getByText("hello big world").waitFor();
  assert.equal(await page.locator("main img, main script, main a[href^=javascript]").count(), 0);
});

scenario("who may only read is offered nothing else", async (it) => {
  const { page, open } = it;
  const id = await threadOf(it, "echo", { text: "a" });
  const key = await it.keyOf("read");
  await open(at(it, `/threads/${id}`), { key });
  await changes(page).getByText("log[0]").waitFor();
  for (const name of ["Copy", "Rename the thread", "Delete…", "Edit and fork…", "Replay from here"]) {
    assert.equal(await page.locator("main header").getByRole("button", { name, exact: true }).count(), 0, name);
  }
  await page.getByRole("tab", { name: "State" }).click();
  await open(at(it, "/threads"), { key });
  await page.getByRole("link", { name: `Thread ${id.slice(-8)}` }).waitFor();
  assert.equal(await page.getByLabel("Choose all threads of this page").count(), 0);
});
