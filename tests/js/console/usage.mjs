// What was used: by which deployment, model, key and day.

import { readFile } from "node:fs/promises";
import { api, assert, scenario } from "./harness.mjs";

scenario("tokens are shown by what was asked, and taken along as CSV", async ({ page, open, deployments: { chatroom }, check }) => {
  const input = { messages: [{ role: "user", content: "hello" }] };
  await api("POST", `/d/${chatroom}/runs/wait`, { assistant_id: "chat", input });
  await open("/usage?by=deployment");
  const table = page.getByRole("region", { name: "Usage" });
  await table.getByRole("link", { name: chatroom, exact: true }).first().waitFor();
  await check();
  await page.getByRole("checkbox", { name: "Day" }).check();
  await table.getByRole("columnheader", { name: "Day" }).waitFor();
  assert.match(page.url(), /by=day(%2C|,)deployment/);
  await page.reload();
  await table.getByRole("columnheader", { name: "Day" }).waitFor();
  const started = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download as CSV" }).click();
  const file = await started;
  assert.match(file.suggestedFilename(), /^usage-.*\.csv$/);
  const [head, ...rows] = (await readFile(await file.path(), "utf8")).trim().split(/\r?\n/);
  assert.match(head, /^day,deployment_id,deployment,/);
  assert.ok(rows.some((row) => row.includes(chatroom)));
  await page.getByRole("checkbox", { name: "User" }).check();
  await table.getByRole("columnheader", { name: "User" }).waitFor();
  await page.getByRole("checkbox", { name: "Node" }).check(); // users and nodes cannot be combined
  await table.getByRole("columnheader", { name: "User" }).waitFor({ state: "detached" });
  await page.waitForURL(/by=day(%2C|,)deployment(%2C|,)node/);
});

scenario("the users with the most tokens come first", async ({ page, open }) => {
  const row = (user, total_tokens, is_rest = false) => ({ user, is_rest, runs: 1, input_tokens: total_tokens, output_tokens: 0, total_tokens, cost: null });
  await page.route(/v2\/usage\?.*by=user/, (route) => route.fulfill({ json: { usage: [row(null, 900, true), row("ann", 20), row("bob", 300)] } }));
  await open("/usage?by=user");
  const table = page.getByRole("region", { name: "Usage" });
  await table.getByText("ann").waitFor();
  assert.deepEqual(await table.locator("tbody .in-head").allTextContents(), ["bob", "ann", "all others"]);
});

scenario("days without use say so", async ({ page, open }) => {
  await open("/usage?from=2001-01-01&until=2001-01-02");
  await page.getByRole("heading", { name: "No usage on these days" }).waitFor();
});
