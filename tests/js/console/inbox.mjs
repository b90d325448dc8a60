// The inbox: finding, answering, assigning and snoozing questions, and the page that a link for one answer opens.

import { assert, scenario, until } from "./harness.mjs";

const at = (it, path) => `/d/${it.deployments.kitchen}${path}`;

/** Threads on which a graph asks "may I?", with a topic of their own. */
async function askOn(it, topic, count = 1) {
  const ids = [];
  for (let number = 1; number <= count; number++) {
    const { thread_id: id } = await it.api("POST", at(it, "/threads"), { metadata: { topic, title: `${topic} ${number}` } });
    await it.api("POST", at(it, `/threads/${id}/runs/wait`), { assistant_id: "asks", input: {} });
    ids.push(id);
  }
  return ids;
}

const inbox = (topic, more = "") => `/inbox?metadata=${encodeURIComponent(`topic=${topic}`)}${more}`;
const rows = (page) => page.getByRole("list", { name: "Questions" }).getByRole("listitem");
const panel = (page) => page.getByRole("region", { name: "Question", exact: true });
const answer = (page) => panel(page).getByRole("textbox", { name: "Answer", exact: true });
const threadOf = (it, id) => it.api("GET", at(it, `/threads/${id}`));
const questionsOn = async (it, topic, status = "open") =>
  (await it.api("GET", `/v2/inbox?status=${status}&metadata=${encodeURIComponent(JSON.stringify({ topic }))}`)).resources;

/** Choose the first question; on a wide page it is chosen from the start. */
async function choose(it) {
  if (it.isNarrow) await rows(it.page).first().getByRole("link").click();
  await panel(it.page).getByRole("button", { name: "Assign to me" }).waitFor();
}

scenario("a question is answered with the keyboard alone, and the run ends", async (it) => {
  const { page, open } = it;
  const topic = it.unique("keys");
  const [first, second] = await askOn(it, topic, 2);
  await open(inbox(topic));
  await page.getByText("2 questions, oldest first").waitFor();
  if (!it.isNarrow) await page.getByRole("navigation", { name: "Main" }).getByRole("link", { name: /^Inbox ?\d+$/ }).waitFor();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await it.check();
  await page.keyboard.press("Escape");
  if (it.isNarrow) await page.keyboard.press("j");
  await panel(page).getByRole("heading", { name: `${topic} 1` }).waitFor();
  await page.keyboard.press("j");
  await panel(page).getByRole("heading", { name: `${topic} 2` }).waitFor();
  await page.keyboard.press("a");
  await panel(page).getByText("assigned to").waitFor();
  await page.keyboard.press("k");
  await panel(page).getByRole("heading", { name: `${topic} 1` }).waitFor();
  await page.keyboard.press("Enter");
  await page.keyboard.type("yes, j and k"); // no shortcuts while typing
  await it.check();
  await page.keyboard.press("Control+Enter");
  await page.getByText(`Answer sent to ${topic} 1`).waitFor();
  await until(async () => (await threadOf(it, first)).status === "idle", "the thread is not idle");
  assert.deepEqual((await threadOf(it, first)).values.log, ["before", "yes, j and k", "after"]);
  assert.equal((await threadOf(it, second)).status, "interrupted");
  if (!it.isNarrow) await panel(page).getByRole("heading", { name: `${topic} 2` }).waitFor();
  await open(inbox(topic, "&status=answered"));
  await page.getByText("1 question, last ended first").waitFor();
  if (it.isNarrow) await rows(page).first().getByRole("link").click();
  await panel(page).getByText("yes, j and k").first().waitFor();
  await panel(page).getByRole("region", { name: "Outcome" }).getByRole("link", { name: /^Run/ }).click();
  await page.getByRole("heading", { level: 1 }).waitFor();
  assert.match(page.url(), new RegExp(`/runs/${first}/`));
});

scenario("a question is assigned, snoozed and woken, and found by filters", async (it) => {
  const { page, open } = it;
  const topic = it.unique("later");
  await askOn(it, topic);
  await open(inbox(topic));
  await choose(it);
  await panel(page).getByRole("button", { name: "Assign…" }).click();
  await page.getByRole("dialog").getByLabel("Assignee").fill("maria@example.org");
  await page.keyboard.press("Enter");
  await panel(page).getByText("maria@example.org").first().waitFor();
  assert.equal((await questionsOn(it, topic))[0].assignee, "maria@example.org");
  await panel(page).getByRole("button", { name: "Snooze…" }).click();
  await it.check();
  await page.getByRole("dialog").getByRole("button", { name: "1 hour" }).click();
  await until(async () => (await questionsOn(it, topic, "snoozed")).length === 1, "the question is not snoozed");
  await open(inbox(topic));
  await page.getByRole("heading", { name: "No question matches" }).waitFor();
  await page.getByLabel("Status").selectOption("snoozed");
  await rows(page).first().waitFor();
  await choose(it);
  await panel(page).getByRole("button", { name: "Snooze…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Wake now" }).click();
  await until(async () => (await questionsOn(it, topic)).length === 1, "the question is still snoozed");
  await open(inbox(topic, "&assignee=nobody-has-this-name"));
  await page.getByRole("heading", { name: "No question matches" }).waitFor();
  await page.getByLabel("Metadata of the thread").fill("topic");
  await page.keyboard.press("Enter");
  await page.getByText("neither key=value nor JSON").waitFor();
});

scenario("an answer from elsewhere shows at once, and the typed one stays", async (it) => {
  const { page, open } = it;
  const topic = it.unique("race");
  await askOn(it, topic);
  await open(inbox(topic));
  await choose(it);
  await answer(page).fill("half an answer");
  const [{ id }] = await questionsOn(it, topic);
  await it.api("PATCH", `/v2/inbox/${id}`, { assignee: "bea" });
  await panel(page).getByText("assigned to").waitFor();
  assert.equal(await answer(page).inputValue(), "half an answer");
  await it.api("POST", `/v2/inbox/${id}/answer`, { answer: "faster" });
  const outcome = panel(page).getByRole("region", { name: "Outcome" });
  await outcome.getByText("Answered").waitFor();
  await outcome.getByText("faster").waitFor();
  await panel(page).getByText("Your answer was not sent").waitFor();
  await panel(page).getByText("half an answer").waitFor();
});

scenario("equal questions share one answer", async (it) => {
  const { page, open } = it;
  const topic = it.unique("equal");
  const ids = await askOn(it, topic, 3);
  await open(inbox(topic));
  await choose(it);
  await panel(page).getByRole("button", { name: "Select all 3 questions equal to this one" }).click();
  await panel(page).getByRole("heading", { name: "3 questions selected" }).waitFor();
  await it.check();
  await answer(page).fill("to all");
  await panel(page).getByRole("button", { name: "Answer 3 questions" }).click();
  for (const id of ids) await until(async () => (await threadOf(it, id)).values.log?.includes("to all"), `${id} has no answer`);
  await page.getByRole("heading", { name: "No question matches" }).waitFor();
});

scenario("a reader sees questions and cannot answer", async (it) => {
  const { page, open } = it;
  const topic = it.unique("reader");
  await askOn(it, topic);
  await open(inbox(topic), { key: await it.keyOf("read") });
  if (it.isNarrow) await rows(page).first().getByRole("link").click();
  await panel(page).getByText("needs the role run").waitFor();
  assert.equal(await answer(page).isDisabled(), true);
  assert.equal(await panel(page).getByRole("button", { name: "Assign to me" }).count(), 0);
});

scenario("a link answers one question once, without a key", async (it) => {
  const { page, open } = it;
  const topic = it.unique("link");
  const [id] = await askOn(it, topic);
  await open(inbox(topic));
  await choose(it);
  await panel(page).getByRole("button", { name: "Link…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Label").fill("Ms. Ng");
  await dialog.getByRole("button", { name: "Create a link" }).click();
  const address = await dialog.getByLabel("New link").inputValue();
  await dialog.getByText("active").waitFor();
  await it.check();
  const token = new URL(address).hash;
  await page.goto(`${it.url}/ok`); // ends the polls of the inbox
  const requests = [];
  page.on("request", (request) => requests.push(request));
  await page.goto(`${it.url}/o/answer${token}`);
  await page.getByRole("heading", { name: `${topic} 1` }).waitFor();
  await page.getByText("may I?").waitFor();
  await it.check();
  await page.getByRole("textbox", { name: "Answer" }).fill("by link");
  it.allow(/409/);
  const changed = { status: 409, json: { detail: "This question has changed." } };
  await page.route("**/v2/inbox/link/answer", (route) => route.fulfill(changed), { times: 1 });
  await page.getByRole("button", { name: "Answer" }).click();
  await page.getByText("This question has changed.").waitFor();
  assert.ok(JSON.parse(requests.find((request) => request.url().endsWith("/link/answer")).postData()).version);
  await page.getByRole("button", { name: "Answer" }).click();
  await page.getByRole("heading", { name: "Thank you" }).waitFor();
  await it.check();
  await until(async () => (await threadOf(it, id)).values.log?.includes("by link"), "the answer did not arrive");
  const calls = requests.filter((request) => !/\/o\/(static|answer)/.test(request.url()) && !request.url().startsWith("data:"));
  assert.deepEqual(calls.map((request) => new URL(request.url()).pathname), ["question", "answer", "question", "answer"].map((route) => `/v2/inbox/link/${route}`));
  assert.ok(calls.every((request) => !request.headers()["x-api-key"]));
  assert.equal((await questionsOn(it, topic, "answered"))[0].answer, "by link");
  it.allow(/40[14]|410/); // the browser reports each refused call
  await page.reload();
  await page.getByRole("heading", { name: "This link does not work any more" }).waitFor();
  await page.goto(`${it.url}/o/answer#unknown`);
  await page.getByRole("heading", { name: "This link does not work any more" }).waitFor();
  await page.goto(`${it.url}/o/answer`);
  await page.getByRole("heading", { name: "This link is incomplete" }).waitFor();
});

scenario("a link is revoked", async (it) => {
  const { page, open } = it;
  const topic = it.unique("revoked");
  await askOn(it, topic);
  const [{ id }] = await questionsOn(it, topic);
  const { url: address } = await it.api("POST", `/v2/inbox/${id}/link`, { label: "Ms. Ng" });
  await open(inbox(topic));
  await choose(it);
  await panel(page).getByRole("button", { name: "Link…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke Ms. Ng" }).click();
  await page.getByRole("dialog").getByText("revoked").first().waitFor();
  it.allow(/410/);
  await page.goto(`${it.url}/o/answer${new URL(address).hash}`);
  await page.getByText(/revoked/).waitFor();
});
