// Who may see the console, and what of it survives a reload.

import { assert, scenario } from "./harness.mjs";

scenario("a wrong key is refused, the right one is kept in this tab alone", async ({ page, url, key, allow, check }) => {
  allow(/status of 401/);
  await page.goto(`${url}/`);
  await page.getByLabel("API key").fill("wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").filter({ hasText: "Unknown API key" }).waitFor();
  await check();
  await page.getByLabel("API key").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  assert.equal(await page.evaluate(() => JSON.stringify({ ...localStorage })), "{}");
  assert.ok(!page.url().includes(key));
  await page.reload();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const other = await page.context().newPage();
  await other.goto(`${url}/`);
  await other.getByLabel("API key").waitFor();
  await other.close();
});

scenario("signing out forgets the key", async ({ page, open, isNarrow }) => {
  await open("/");
  if (isNarrow) await page.getByRole("button", { name: "Menu" }).click();
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API key").waitFor();
  await page.reload();
  await page.getByLabel("API key").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
});

scenario("a page that was not loaded before the service stopped says so and appears when it is back", async (it) => {
  const { page, open } = it;
  it.allow(/net::ERR_FAILED/);
  await open("/");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const down = /\/pages\/usage\.js|\/ok$/;
  await page.route(down, (route) => route.abort());
  await page.evaluate(() => { location.hash = "#/usage"; });
  await page.getByRole("alert").filter({ hasText: "could not be loaded, because the service does not answer" }).waitFor();
  await it.check();
  await page.unroute(down);
  await page.getByRole("heading", { name: "Usage", exact: true }).waitFor();
  assert.equal(await page.getByRole("alert").count(), 0);
});

scenario("a refused page states the reason and what to do, and loads again by itself after a temporary error", async (it) => {
  const { page, open } = it;
  it.allow(/net::ERR_FAILED|status of (403|404|409|429|503)/);
  const refusals = [
    [403, "may not", "You may need another role."], [404, "Not Found", "There is nothing at this address."], [404, "Key not found", "It may have been deleted"],
    [409, "It changed", "Reload the page"], [429, "Too many", "The page tries again by itself."], [503, "Draining", "The page tries again by itself."],
  ];
  const down = /\/v2\/keys/;
  const keys = page.getByRole("table").or(page.getByRole("heading", { name: "No keys yet" }));
  await open("/");
  for (const [status, detail, words] of refusals) {
    await page.getByRole("heading", { name: "Overview" }).waitFor();
    await page.route(down, (route) => route.fulfill({ status, json: { detail } }));
    await page.evaluate(() => { location.hash = "#/keys"; });
    await page.getByRole("alert").filter({ hasText: words }).waitFor();
    await page.unroute(down);
    if (status !== 503) await page.evaluate(() => { location.hash = "#/"; });
  }
  await keys.waitFor(); // after the 503
  await page.route(down, (route) => route.abort());
  await page.evaluate(() => { location.hash = "#/"; });
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.evaluate(() => { location.hash = "#/keys"; });
  await page.getByRole("alert").filter({ hasText: "Cannot reach the service." }).filter({ hasText: "The page tries again by itself." }).waitFor();
  await it.check();
  await page.unroute(down);
  await keys.waitFor();
  assert.equal(await page.getByRole("alert").count(), 0);
});

scenario("an address that there is not leads back", async ({ page, open }) => {
  await open("/no/such/page");
  await page.getByRole("heading", { name: "There is no such page" }).waitFor();
  await page.getByRole("link", { name: "To the overview" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.goBack();
  await page.getByRole("heading", { name: "There is no such page" }).waitFor();
});

scenario("the theme is that of the system or the reader's choice", async ({ page, open, isNarrow }) => {
  await open("/");
  if (isNarrow) await page.getByRole("button", { name: "Menu" }).click();
  const background = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const system = await background();
  const backgrounds = [];
  for (const theme of ["Light", "Dark"]) {
    await page.getByRole("group", { name: "Theme" }).getByText(theme).click();
    backgrounds.push(await background());
  }
  assert.equal(new Set(backgrounds).size, 2);
  assert.ok(backgrounds.includes(system));
  await page.getByRole("radio", { name: "Light" }).focus();
  await page.keyboard.press("ArrowRight");
  assert.ok(await page.getByRole("radio", { name: "Dark" }).isChecked());
  await page.reload();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
});
