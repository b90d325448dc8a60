// Sign-in with OpenID Connect, in a browser that also opens pages of a hostile project.

import { api, assert, scenario, until } from "./harness.mjs";

const PERSON = "Ann Example <ann@example.com>";
const COOKIE = "runyard_session";
const FOREIGN = /another origin/; // the provider has an address of its own

async function signIn({ page, url, allow, isNarrow }, place = "/") {
  allow(FOREIGN);
  await page.goto(`${url}/#${place}`);
  await page.getByRole("button", { name: "Sign in with Acme" }).click();
  await page.getByRole("button", { name: "Allow" }).click();
  if (place === "/") await page.getByRole("heading", { name: "Overview" }).waitFor();
  if (isNarrow) await page.getByRole("button", { name: "Menu" }).click();
  await page.getByText(`${PERSON}, admin`).waitFor();
}

const cookieOf = async ({ page }) => (await page.context().cookies()).find(({ name }) => name === COOKIE);

scenario("a person signs in, and no script can read the session", async (it) => {
  const { page, url } = it;
  await page.goto(`${url}/`);
  await page.getByRole("button", { name: "Sign in with Acme" }).waitFor();
  await it.check();
  await signIn(it);
  await page.getByText(`${PERSON}, admin`).waitFor();
  const cookie = await cookieOf(it);
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/"]);
  assert.equal(await page.evaluate(() => document.cookie + JSON.stringify([{ ...sessionStorage }, { ...localStorage }])), "[{},{}]");
  assert.ok(!page.url().includes("code="), page.url());
  await page.reload();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const other = await page.context().newPage();
  await other.goto(`${url}/`);
  await other.getByRole("heading", { name: "Overview" }).waitFor();
  await other.close();
});

scenario("sign-in leads back to the page that was opened", async (it) => {
  await signIn(it, "/keys");
  await it.page.getByRole("heading", { name: "API keys" }).waitFor();
});

scenario("signing out ends the session in all tabs, which say so", async (it) => {
  const { page, url, isNarrow, allow } = it;
  allow(/status of 401/);
  await signIn(it);
  const other = await page.context().newPage();
  await other.goto(`${url}/`);
  await other.getByRole("heading", { name: "Overview" }).waitFor();
  if (isNarrow) await other.getByRole("button", { name: "Menu" }).click();
  await other.getByRole("button", { name: "Sign out" }).click();
  await other.getByRole("button", { name: "Sign in with Acme" }).waitFor();
  assert.equal(await cookieOf(it), undefined);
  await page.evaluate(() => void (location.hash = "#/workers"));
  await page.getByRole("alert").filter({ hasText: "Your session has ended. Sign in again." }).waitFor();
  await page.getByRole("button", { name: "Sign in with Acme" }).waitFor();
});

scenario("a key still works beside sign-in", async ({ page, url, key }) => {
  await page.goto(`${url}/`);
  await page.getByRole("button", { name: "Use an API key" }).click();
  await page.getByLabel("API key").fill(key);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
});

scenario("a person confirms the code of a command line", async (it) => {
  const { page, url } = it;
  const begin = () => api("POST", "/v2/sign-in/device", { device: "ann-laptop" });
  const poll = ({ device_code }) => api("POST", "/v2/sign-in/device/token", { device_code });
  const login = await begin();
  await signIn(it, `/device?code=${login.user_code}`);
  await page.getByText("ann-laptop").waitFor();
  await it.check();
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("status").filter({ hasText: "The command line is signed in" }).waitFor();
  const polled = await poll(login);
  assert.equal(polled.status, "completed");
  assert.equal((await api("GET", "/v2/me", undefined, { key: polled.key })).role, "admin");

  const refused = await begin();
  await page.goto(`${url}/#/device`);
  await page.reload();
  await page.getByLabel("Code").fill(refused.user_code.toLowerCase());
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByRole("button", { name: "Refuse" }).click();
  await page.getByRole("status").filter({ hasText: "refused" }).waitFor();
  assert.equal((await poll(refused)).status, "denied");
});

// What a page of a project tries: each line is the outcome of one request to the service.
const ATTACK = async ([csrf, deployment]) => {
  const outcomes = {};
  const attempt = async (name, path, options = {}) => {
    try {
      const answer = await fetch(path, { credentials: "include", ...options });
      outcomes[name] = answer.type === "opaque" ? "opaque" : `${answer.status} ${await answer.text()}`;
    } catch (error) {
      outcomes[name] = error.name;
    }
  };
  const headers = { "x-runyard-csrf": csrf };
  const json = { "content-type": "application/json" };
  await attempt("session", "/v2/sign-in/session");
  await attempt("session with the header", "/v2/sign-in/session", { headers });
  await attempt("session, unreadable", "/v2/sign-in/session", { mode: "no-cors" });
  await attempt("me", "/v2/me", { headers });
  await attempt("key", "/v2/keys", { method: "POST", headers: { ...headers, ...json }, body: JSON.stringify({ name: "loot", role: "admin" }) });
  await attempt("key, unreadable", "/v2/keys", { method: "POST", mode: "no-cors", headers: { "content-type": "text/plain" }, body: JSON.stringify({ name: "loot", role: "admin" }) });
  await attempt("threads", `${deployment}/threads/search`, { method: "POST", headers: { ...headers, ...json }, body: "{}" });
  await attempt("threads, as the console", `${deployment}/threads/search`, { method: "POST", credentials: "omit", headers: { ...headers, ...json }, body: "{}" });
  await attempt("sign-out", "/v2/sign-out", { method: "POST", headers });
  await attempt("sign-out, unreadable", "/v2/sign-out", { method: "POST", mode: "no-cors" });
  return { origin: self.origin, outcomes, cookie: (() => { try { return document.cookie; } catch (error) { return error.name; } })() };
};

scenario("a project's page at the console's address cannot use the session", async (it) => {
  const { page, url, deployments, allow } = it;
  allow(/./); // the attacks are refused with errors of many kinds
  await signIn(it);
  const csrf = await page.evaluate(() => fetch("/v2/sign-in/session", { headers: { "x-runyard-csrf": "?" } }).then((answer) => answer.json()).then(({ session }) => session.csrf_token));
  assert.match(csrf, /^ryd_csrf_/);
  const keys = async () => (await api("GET", "/v2/keys")).resources.filter(({ name }) => name === "loot").length;
  const sent = [];
  const hostile = await page.context().newPage();
  hostile.on("request", (request) => sent.push(request.allHeaders().then((headers) => `${request.url()} ${headers.cookie ?? ""}`, () => "")));
  const deployment = `/d/${deployments.hostile}`;
  for (const path of ["page", "picture.svg"]) {
    sent.length = 0;
    await hostile.goto(`${url}${deployment}/${path}`);
    // Even a page that has learned the CSRF token gets nothing.
    const { origin, outcomes, cookie } = await hostile.evaluate(ATTACK, [csrf, deployment]);
    assert.equal(origin, "null");
    assert.equal(cookie, "SecurityError");
    for (const [name, outcome] of Object.entries(outcomes)) {
      assert.match(outcome, name.startsWith("threads") ? /^(TypeError|401 )/ : /^(TypeError|opaque)/, `${path}: ${name}: ${outcome}`);
    }
    const cookies = (await Promise.all(sent)).filter((line) => line.includes(COOKIE) && !line.startsWith(`${url}${deployment}/${path} `));
    assert.deepEqual(cookies, [], "the browser sent the session with a request of the page");
  }
  assert.equal(await keys(), 0);
  await hostile.close();
  await page.reload();
  await page.getByRole("heading", { name: "Overview" }).waitFor(); // still signed in
});

scenario("a page that a project opens or embeds cannot use the session", async (it) => {
  const { page, url, deployments, allow } = it;
  allow(/./);
  await signIn(it);
  const before = (await api("GET", "/v2/keys")).resources.length;
  const hostile = await page.context().newPage();
  await hostile.goto(`${url}/d/${deployments.hostile}/page`);
  // A form posts across origins without a preflight request. The browser follows it with the window.
  await hostile.evaluate((to) => {
    for (const [path, type] of [["/v2/keys", "text/plain"], ["/v2/sign-out", "application/x-www-form-urlencoded"]]) {
      const form = Object.assign(document.createElement("form"), { action: new URL(path, to).href, method: "post", enctype: type, target: "_blank" });
      const field = Object.assign(document.createElement("input"), { name: '{"name": "loot", "role": "admin", "x": "', value: '"}' });
      form.append(field);
      document.body.append(form);
      form.submit();
    }
    const frame = Object.assign(document.createElement("iframe"), { src: new URL("/", to).href });
    document.body.append(frame);
  }, url);
  await until(() => page.context().pages().length >= 3, "the forms opened no window");
  await hostile.waitForTimeout(500);
  for (const other of page.context().pages()) if (other !== page) await other.close();
  assert.equal((await api("GET", "/v2/keys")).resources.length, before);
  await page.reload();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
});
