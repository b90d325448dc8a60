// What people do with the things of a deployment and of the service. What `tests/e2e/console/things.py` put there stays as it is;
// whatever a scenario changes it has made itself.

import { assert, api, scenario } from "./harness.mjs";

const HOSTILE = '"><img src=x onerror="window.hacked=1"><script>';

const at = ({ deployments }, page, query = "") => `/d/${deployments.shelf}/${page}${query && `?${query}`}`;
const call = ({ deployments }, method, path, body) => api(method, `/d/${deployments.shelf}${path}`, body);
const row = (page, text) => page.locator("tbody tr").filter({ hasText: text });
const dialog = (page) => page.getByRole("dialog");
const button = (within, name) => within.getByRole("button", { name, exact: true });
const heading = (page, name) => page.getByRole("heading", { name, exact: true });

/** Nothing of what was stored has run, and nothing is wider than the page. */
async function isInert(page) {
  assert.equal(await page.evaluate(() => globalThis.hacked), undefined);
  assert.equal(await page.locator("main img, main script").count(), 0);
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), "the page is wider than the window");
}

scenario("assistants are found by graph, name and metadata, and a stranger's name stays text", async (it) => {
  const { page, open } = it;
  await open(at(it, "assistants"));
  await row(page, HOSTILE).waitFor();
  await isInert(page);
  await page.getByLabel("Graph").selectOption("greets");
  await row(page, HOSTILE).waitFor({ state: "detached" });
  await page.getByRole("link", { name: "greets", exact: true }).waitFor();
  await page.getByLabel("Graph").selectOption("");
  await page.getByLabel("Name").fill("onerror");
  await row(page, HOSTILE).waitFor();
  await page.getByLabel("Metadata").fill('{"note": ');
  await page.getByRole("alert").waitFor();
  await page.getByLabel("Metadata").fill('{"note": "none"}');
  await heading(page, "No assistant matches").waitFor();
  await button(page, "Show all").click();
  await row(page, HOSTILE).waitFor();
});

scenario("an assistant is made, changed, taken back to its first version and deleted", async (it) => {
  const { page, open, unique, check } = it;
  const name = unique("greeter");
  await open(at(it, "assistants"));
  await button(page, "New assistant").click();
  await dialog(page).getByLabel("Graph").selectOption("greets");
  await dialog(page).getByLabel("Name").fill(name);
  await dialog(page).getByLabel("word").fill("hello");
  await check();
  await button(dialog(page), "Create assistant").click();
  await heading(page, name).waitFor();
  await button(page, "Change").click();
  await dialog(page).getByLabel("loud").check();
  await button(dialog(page), "Save as a new version").click();
  await page.getByRole("tab", { name: "Version 2" }).waitFor();
  await page.getByRole("tab", { name: "All versions" }).click();
  const differences = page.getByRole("region", { name: "Differences" });
  await differences.getByRole("row", { name: "added context.loud true" }).waitFor();
  assert.equal(await differences.getByRole("row").count(), 2);
  await page.getByLabel("Show equal entries").check();
  await differences.getByRole("row", { name: "context.word hello hello" }).waitFor();
  await check();
  await isInert(page);
  await button(page, "Activate version 1").click();
  await page.getByRole("tab", { name: "Version 1" }).waitFor();
  const id = page.url().match(/assistants\/([^?]+)/)[1];
  assert.deepEqual((await call(it, "GET", `/assistants/${id}`)).context, { word: "hello" });
  assert.match(await page.getByRole("link", { name: "Open in playground" }).getAttribute("href"), new RegExp(`playground/greets\\?assistant=${id}`));
  await button(page, "Delete").click();
  await button(dialog(page), "Delete").click();
  await heading(page, "Assistants").waitFor();
  await row(page, name).waitFor({ state: "detached" });
});

scenario("a cron says in words when it is due, what it did, and when it is due next", async (it) => {
  const { page, open, deployments } = it;
  await open(at(it, "crons", `cron=${deployments.fired}`));
  await heading(page, "Next times").waitFor();
  await page.getByRole("row", { name: "Monday to Friday at 09:30 30 9 * * 1-5 Europe/Berlin" }).waitFor();
  const firings = page.locator(".firings li");
  await firings.first().waitFor();
  assert.equal(await firings.count(), 5);
  assert.match(await firings.first().textContent(), /^(Mon|Tue|Wed|Thu|Fri), .* 09:30:00 (CET|CEST|GMT\+[12]) in \d+ (h|days|min)$/);
  await page.getByRole("region", { name: "Cron", exact: true }).getByText("success").first().waitFor();
  assert.match(await page.getByRole("region", { name: "Cron", exact: true }).getByRole("link").first().getAttribute("href"), /#\/d\/shelf\/runs\/.+\/.+/);
  await isInert(page);
});

scenario("a cron is made, paused, continued, changed and deleted", async (it) => {
  const { page, open, check, width } = it;
  const minute = width === 400 ? 7 : 8;
  await open(at(it, "crons"));
  await button(page, "New cron").click();
  await dialog(page).getByLabel("Assistant").selectOption({ label: "greets" });
  await dialog(page).getByLabel("Schedule").fill("every day");
  await button(dialog(page), "Save").click();
  it.allow(/status of 422/);
  await dialog(page).getByText("Invalid cron schedule").waitFor();
  await dialog(page).getByLabel("Schedule").fill(`${minute} 4 * * *`);
  await dialog(page).getByText(`Every day at 04:0${minute}`).waitFor();
  await dialog(page).getByLabel("Time zone").fill("Asia/Tokyo");
  await dialog(page).getByLabel("Input").fill('{"text": ');
  await dialog(page).getByText(/^Line 1/).waitFor();
  assert.ok(await button(dialog(page), "Save").isDisabled());
  await dialog(page).getByLabel("Input").fill('{"text": "hi"}');
  await check();
  await button(dialog(page), "Save").click();
  await row(page, `Every day at 04:0${minute}`).waitFor();
  await button(page, `Pause ${minute} 4 * * *`).click();
  await row(page, `Every day at 04:0${minute}`).getByText("paused").waitFor();
  await button(page, `Continue ${minute} 4 * * *`).click();
  await row(page, `Every day at 04:0${minute}`).getByText("enabled").waitFor();
  await button(page, `Change ${minute} 4 * * *`).click();
  await dialog(page).getByLabel("Schedule").fill(`${minute} 5 * * *`);
  await button(dialog(page), "Save").click();
  await row(page, `Every day at 05:0${minute}`).getByText("Asia/Tokyo").waitFor();
  await button(page, `Delete ${minute} 5 * * *`).click();
  await button(dialog(page), "Delete").click();
  await row(page, `Every day at 05:0${minute}`).waitFor({ state: "detached" });
});

scenario("the store is walked by namespace, searched by meaning and by value", async (it) => {
  const { page, open, check } = it;
  await open(at(it, "store"));
  await row(page, HOSTILE.slice(0, 20)).first().waitFor();
  await button(page, "Namespaces below hostile").click();
  await page.getByRole("link", { name: "<script>alert(1)</script>" }).waitFor();
  await isInert(page);
  await page.getByRole("link", { name: "users", exact: true }).click();
  await page.getByRole("link", { name: "42", exact: true }).click();
  await row(page, "first").getByText("in 1 h").or(row(page, "first").getByText("in 2 h")).waitFor();
  await row(page, "large").waitFor({ state: "detached" });
  await row(page, "likes").first().waitFor();
  await page.getByLabel("Search by meaning").fill("tea");
  await page.getByRole("columnheader", { name: "Score" }).waitFor();
  const items = page.getByRole("region", { name: "Items" });
  await items.locator("tbody tr").first().getByRole("button", { name: "likes", exact: true }).waitFor();
  assert.match(await items.locator("tbody tr").first().textContent(), /^0\.\d{3}|^1\.000/);
  await page.getByLabel("Search by meaning").fill("");
  await page.getByLabel("Filter by values").fill('{"text": "rain"}');
  await row(page, "coffee").waitFor({ state: "detached" });
  await row(page, "rain").waitFor();
  assert.equal(await items.locator("tbody tr").count(), 1);
  await check();
});

scenario("a value of 1 MB is shown in part and does not freeze the page", async (it) => {
  const { page, open } = it;
  await open(at(it, "store", `item=${encodeURIComponent('["large","one"]')}`));
    await dialog(page).getByRole("button", { name: /show all/ }).first().waitFor();
  assert.ok((await page.evaluate(() => document.body.textContent.length)) < 100_000);
  assert.ok((await page.locator("dialog *").count()) < 2_000);
});

scenario("an item is put, changed and deleted", async (it) => {
  const { page, open, unique, check } = it;
  const key = unique("key");
  await open(at(it, "store", "ns=users.7"));
  await button(page, "New item").first().click();
  await dialog(page).getByLabel("Key").fill(key);
  await dialog(page).getByLabel("Value").fill('{"tea": true}');
  await dialog(page).getByLabel("Time to live in minutes").fill("30");
  await check();
  await button(dialog(page), "Save").click();
  await row(page, key).getByText("in 30 min").waitFor();
  await button(page, key).click();
  await dialog(page).getByText("true", { exact: true }).waitFor();
  await button(dialog(page), "Change").click();
  const form = page.getByRole("dialog", { name: `Change ${key}` });
  await form.getByLabel("Value").fill('{"tea": false}');
  await button(form, "Save").click();
  await dialog(page).getByText("false", { exact: true }).waitFor();
  assert.deepEqual((await call(it, "GET", `/store/items?namespace=users.7&key=${key}`)).value, { tea: false });
  await button(dialog(page), "Delete").click();
  await button(page.getByRole("dialog", { name: `Delete ${key}?` }), "Delete").click();
  await row(page, key).waitFor({ state: "detached" });
  assert.equal(await dialog(page).count(), 0);
});

scenario("webhooks are found by what became of them, and sent again", async (it) => {
  const { page, open, check } = it;
  await open(at(it, "webhooks"));
  await row(page, "delivered").getByText("200").waitFor();
  await row(page, "pending").getByText("500").waitFor();
  await isInert(page);
  await row(page, "pending").getByRole("button", { name: /^Retry/ }).click();
  await page.getByText("The webhook is being sent again.").waitFor();
  await page.getByLabel("Status").selectOption("delivered");
  await row(page, "pending").waitFor({ state: "detached" });
  assert.ok(!(await page.textContent("main")).includes("secret=1"));
  await page.locator("tbody tr").first().click({ position: { x: 8, y: 12 } });
  await dialog(page).getByText("Answer").waitFor();
});

scenario("a provider is described, changed and deleted; its secret is never shown", async (it) => {
  const { page, open, unique, deployments, check } = it;
  const id = unique("acme");
  await open("/providers");
  await button(page, "New provider").click();
  await dialog(page).getByLabel("Id", { exact: true }).fill(id);
  await dialog(page).getByLabel("Name").fill(id);
  await dialog(page).getByLabel("Authorization URL").fill(`${deployments.oauth}/authorize`);
  await dialog(page).getByLabel("Token URL").fill("ftp://nowhere");
  await dialog(page).getByLabel("Client id").fill("us");
  await dialog(page).getByLabel("Client secret").fill("s3cret");
  await dialog(page).getByText(`/v2/auth/callback/${id}`).waitFor();
  await check();
  it.allow(/status of 4/);
  await button(dialog(page), "Save").click();
  await dialog(page).getByRole("alert").first().waitFor();
  await dialog(page).getByLabel("Token URL").fill(`${deployments.oauth}/token`);
  await button(dialog(page), "Save").click();
  await row(page, id).waitFor();
  await button(page, `Change ${id}`).click();
  assert.equal(await dialog(page).getByLabel("Client secret").inputValue(), "");
  await dialog(page).getByLabel("Client id").fill("others");
  await button(dialog(page), "Save").click();
  await row(page, id).getByText("others").waitFor();
  assert.ok(!(await page.content()).includes("s3cret"));
  await button(page, `Delete ${id}`).click();
  await button(dialog(page), "Delete").click();
  await row(page, id).waitFor({ state: "detached" });
});

scenario("an MCP server's provider is found, and its users' grants are listed and revoked", async (it) => {
  const { page, open, unique, deployments, check } = it;
  const id = unique("mcp");
  await open("/providers");
  await button(page, "From an MCP server").click();
  await dialog(page).getByLabel("Address of the MCP server").fill(`${deployments.oauth}/mcp`);
  await dialog(page).getByLabel("Id", { exact: true }).fill(id);
  await dialog(page).getByLabel("Name").fill(id);
  await button(dialog(page), "Find and register").click();
  await row(page, id).getByText("registered dynamically").waitFor();
  await button(page, `Delete ${id}`).click();
  await button(dialog(page), "Delete").click();
  await page.getByRole("tab", { name: "Grants" }).click();
  await row(page, HOSTILE).waitFor();
  await isInert(page);
  await page.getByLabel("User").fill("ann");
  await row(page, HOSTILE).waitFor({ state: "detached" });
  await row(page, "ann").waitFor();
  await check();
  const [ann] = await api("GET", "/v2/auth/tokens?user_id=ann");
  assert.deepEqual(Object.keys(ann).filter((name) => /token/.test(name)), []);
  await button(page, "Revoke ann").click();
  await button(dialog(page), "Cancel").click();
  await row(page, "ann").waitFor();
  await page.getByLabel("User").fill("nobody");
  await heading(page, "No such grant").waitFor();
});

scenario("a key is made and shown once, changed and revoked, and the audit log tells so", async (it) => {
  const { page, open, unique, check } = it;
  const name = unique("key");
  await open("/keys");
  await row(page, HOSTILE).waitFor();
  await isInert(page);
  await button(page, "New key").click();
  await dialog(page).getByLabel("Name").fill(name);
  await dialog(page).getByLabel("Role").selectOption("read");
  await dialog(page).getByLabel("Lifetime in days").fill("3");
  await dialog(page).getByLabel("Concurrent runs").fill("2");
  await dialog(page).getByLabel("Cost per day").fill("0.5");
  await check();
  await button(dialog(page), "Create key").click();
  const secret = await dialog(page).locator("code").textContent();
  assert.equal((await api("GET", "/v2/me", undefined, { key: secret })).role, "read");
  await check();
  await button(dialog(page), "I have stored the key").click();
  await row(page, name).getByText("2 concurrent runs, $0.50 cost per day").waitFor();
  await row(page, name).getByText("in 3 days").waitFor();
  await page.reload();
  await row(page, name).waitFor();
  assert.ok(!(await page.content()).includes(secret));
  await button(page, `Change ${name}`).click();
  await dialog(page).getByLabel("Concurrent runs").fill("");
  await dialog(page).getByLabel("Cost per day").fill("");
  await button(dialog(page), "Save").click();
  await row(page, name).getByText("none").waitFor();
  await button(page, `Revoke ${name}`).click();
  await button(dialog(page), "Revoke").click();
  await row(page, name).getByText("revoked").waitFor();
  await page.goto(`${it.url}/#/audit?action=key`);
  for (const words of ["key created, role read", "key changed", "key revoked"]) await row(page, name).getByText(words).waitFor();
  await check();
});

scenario("an organization is made, acted in, and deleted once its name is typed", async (it) => {
  const { page, open, unique, check } = it;
  const name = unique("org");
  await open("/organizations");
  await button(page, "New organization").click();
  await dialog(page).getByLabel("Name").fill("not a name");
  it.allow(/status of 4/);
  await button(dialog(page), "Create").click();
  await dialog(page).getByRole("alert").first().waitFor();
  await dialog(page).getByLabel("Name").fill(name);
  await button(dialog(page), "Create").click();
  await row(page, name).waitFor();
  await button(page, `Act here: ${name}`).click();
  await row(page, name).getByText("(you act here)").waitFor();
  await page.goto(`${it.url}/#/keys`);
  await heading(page, "No keys yet").waitFor();
  await page.goto(`${it.url}/#/d/${it.deployments.shelf}/store`);
  await page.getByRole("alert").first().waitFor();
  await page.goto(`${it.url}/#/organizations`);
  await button(page, `Rename ${name}`).click();
  await dialog(page).getByLabel("Name").fill(`${name}-2`);
  await button(dialog(page), "Rename").click();
  await button(page, `Delete ${name}-2`).click();
  assert.ok(await button(dialog(page), "Delete").isDisabled());
  await dialog(page).getByLabel("Type").fill(`${name}-2`);
  await check();
  await button(dialog(page), "Delete").click();
  await row(page, "default").getByText("(you act here)").waitFor();
  await row(page, `${name}-2`).waitFor({ state: "detached" });
});

scenario("workers are shown live, draining one is asked about first, and one that drains can be resumed", async (it) => {
  const { page, open, deployments, check } = it;
  await open("/workers");
  const runners = page.getByRole("region", { name: "Runners" });
  await runners.getByText("ready").first().waitFor();
  await page.getByRole("region", { name: "Builders" }).getByText("ready").first().waitFor();
  await page.getByRole("region", { name: "Graph hosts" }).getByRole("link", { name: deployments.shelf }).first().waitFor();
  await page.getByRole("region", { name: "Pools" }).getByText("default").waitFor();
  await runners.getByRole("button", { name: /^Drain/ }).first().click();
  await dialog(page).getByText("The runner claims no new runs").waitFor();
  await check();
  await button(dialog(page), "Cancel").click();
  const builders = page.getByRole("region", { name: "Builders" });
  await builders.getByRole("button", { name: /^Drain/ }).click();
  await button(dialog(page), "Drain").click();
  await builders.getByText("draining").waitFor();
  await builders.getByRole("button", { name: /^Resume/ }).click();
  await builders.getByText("ready").waitFor();
  await isInert(page);
});

scenario("a key that may only look is offered no change, and refused one", async (it) => {
  const { page, open, keyOf, deployments } = it;
  const key = await keyOf("read");
  const pages = [
    [at(it, "assistants"), "greets"], [at(it, "crons"), "Europe/Berlin"], [at(it, "store"), "large"],
    [at(it, "webhooks"), "delivered"], ["/providers", "Acme"], ["/providers?tab=grants", "ann"], ["/organizations", "default"], ["/workers", "ready"],
  ];
  await open("/workers", { key });
  for (const [path, text] of pages) {
    await page.goto(`${it.url}/#${path}`);
    await row(page, text).first().waitFor();
    const offered = await page.locator("main button").allTextContents();
    const changes = offered.filter((one) => /^(New|Change|Delete|Revoke|Retry|Pause|Continue|Drain|Resume|Act here|Rename|From an)/.test(one));
    assert.deepEqual(changes, [], path);
  }
  await page.goto(`${it.url}/#/keys`);
  await heading(page, "Only admins see the keys").waitFor();
  const refused = [
    ["POST", `/d/${deployments.shelf}/assistants`, { graph_id: "echo" }], ["PUT", `/d/${deployments.shelf}/store/items`, { namespace: ["a"], key: "k", value: {} }],
    ["PATCH", `/d/${deployments.shelf}/runs/crons/${deployments.fired}`, { enabled: false }], ["GET", "/v2/keys"], ["POST", "/v2/organizations", { name: "mine" }],
    ["DELETE", "/v2/auth/providers/acme"], ["DELETE", "/v2/auth/tokens?provider_id=acme"], ["POST", "/v2/workers/any/drain"],
  ];
  for (const [method, path, body] of refused) await assert.rejects(api(method, path, body, { key }), { status: 403 }, path);
});
