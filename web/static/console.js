// A deployment as somebody with a key sees it: status, address, newest revisions, and a build log, live.
// Everything from the API is put into the page as text, never as markup.

const KEY = "runyard.key";
const NEWEST = 10;
const LOG_LINES = 200;
const KEPT_LINES = 2000;
const LOOK_AGAIN_MS = 5000;
const ENDS = new Set([
  "DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED",
]);

const [, root, tenant, deploymentId] = location.pathname.match(/^(.*)\/o\/([^/]+)\/host\/deployments\/([^/]+)$/);
const deploymentUrl = `${root}/v2/deployments/${deploymentId}`;
const at = (id) => document.getElementById(id);

let following = new AbortController(); // of the build log that is shown
let watched = null; // the revision whose build log is shown
let chosen = null; // the one the reader asked for; none: the newest

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(url, options = {}) {
  const headers = { "X-Api-Key": sessionStorage.getItem(KEY) ?? "", "X-Tenant-Id": decodeURIComponent(tenant) };
  if (options.body) headers["Content-Type"] = "application/json";
  const answer = await fetch(url, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const told = typeof body.detail === "string" ? body.detail : `The service answered ${answer.status}.`;
  throw new Refused(answer.status, told);
}

// Asking for the key

function askForKey(message) {
  following.abort();
  sessionStorage.removeItem(KEY);
  watched = chosen = null;
  at("deployment").hidden = true;
  at("sign-in").hidden = false;
  notify(message);
  at("key").focus();
}

function notify(message) {
  at("notice").textContent = message ?? "";
  at("notice").hidden = !message;
}

at("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("key").value.trim());
  at("key").value = "";
  refresh();
});
at("sign-out").addEventListener("click", () => askForKey(null));

// Showing what there is

let refreshing = null;

function refresh() {
  refreshing ??= load().finally(() => { refreshing = null; });
  return refreshing;
}

async function load() {
  try {
    const deployment = await (await call(deploymentUrl)).json();
    const isGoing = deployment.status === "AWAITING_DELETE"; // it has no revisions to show any more
    const revisions = isGoing ? [] : await newest();
    if (!sessionStorage.getItem(KEY)) return; // signed out meanwhile
    show(deployment, revisions);
    notify(isGoing ? "This deployment is being deleted." : null);
    at("sign-in").hidden = true;
    at("deployment").hidden = false;
    watch(revisions);
  } catch (error) {
    if (error instanceof Refused && [401, 403].includes(error.status)) askForKey(error.message);
    else if (error instanceof Refused && [404, 422].includes(error.status)) askForKey(`${error.message} Another key may know it.`);
    else notify(`Cannot reach the service, trying again. ${error.message}`);
  }
}

async function newest() {
  return (await (await call(`${deploymentUrl}/revisions?limit=${NEWEST}`)).json()).resources;
}

function show(deployment, revisions) {
  document.title = `${deployment.name} – runyard`;
  at("name").textContent = deployment.display_name ?? deployment.name;
  at("id").textContent = deployment.id;
  at("type").textContent = deployment.source_config.deployment_type ?? "–";
  at("pool").textContent = deployment.pool ?? "–";
  at("secrets").textContent = deployment.secrets.map((secret) => secret.name).join(", ") || "–";
  showStatus(at("status"), revisions[0]?.status ?? deployment.status);
  at("address").replaceChildren(addressOf(deployment.source_config.custom_url));
  at("revisions").replaceChildren(...revisions.map((revision) => rowOf(revision, deployment)));
}

function showStatus(element, status) {
  element.textContent = status;
  const kind = status.endsWith("FAILED") ? "bad" : status === "DEPLOYED" || status === "READY" ? "good"
    : ENDS.has(status) ? "" : "busy";
  element.className = `status ${kind}`;
}

function addressOf(url) {
  if (!/^https?:\/\//.test(url ?? "")) return document.createTextNode("serves nothing yet");
  const link = document.createElement("a");
  link.href = link.textContent = url;
  return link;
}

function rowOf(revision, deployment) {
  const row = document.createElement("tr");
  row.dataset.id = revision.id;
  row.ariaSelected = String(revision.id === watched);
  const pick = document.createElement("button");
  pick.type = "button";
  pick.textContent = `v${revision.number}`;
  pick.title = `Show the build log of ${revision.id}`;
  pick.addEventListener("click", () => { chosen = revision.id; refresh(); });
  const status = document.createElement("span");
  showStatus(status, revision.status);
  const serves = revision.id === deployment.active_revision_id ? " (serves)" : "";
  row.append(
    cell(pick),
    cell(status, serves),
    cell(new Date(revision.created_at).toLocaleString()),
    cell(revision.status_message ?? ""),
  );
  return row;
}

function cell(...content) {
  const made = document.createElement("td");
  made.append(...content);
  return made;
}

// The build log

function watch(revisions) {
  const revision = revisions.find((one) => one.id === chosen) ?? revisions[0];
  if (!revision || revision.id === watched) return;
  following.abort();
  following = new AbortController();
  watched = revision.id;
  for (const row of at("revisions").children) row.ariaSelected = String(row.dataset.id === watched);
  at("log-of").textContent = `of v${revision.number} (${revision.id})`;
  at("log").replaceChildren();
  const reading = ENDS.has(revision.status) ? readLog(watched, following.signal) : followLog(watched, following.signal);
  reading.catch(() => { if (watched === revision.id) watched = null; }); // the next look begins again
}

async function readLog(id, signal) {
  const body = JSON.stringify({ order: "desc", limit: LOG_LINES });
  const url = `${root}/v1/projects/${deploymentId}/revisions/${id}/build_logs`;
  const answer = await (await call(url, { method: "POST", body, signal })).json();
  if (signal.aborted) return;
  if (answer.next_offset) add([{ level: "INFO", message: `… (its last ${LOG_LINES} lines)` }]);
  add(answer.logs.reverse());
}

async function followLog(id, signal) {
  const answer = await call(`${deploymentUrl}/revisions/${id}/stream`, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let status = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const blocks = (rest + value).split("\r\n\r\n");
    rest = blocks.pop();
    const events = blocks.map(eventOf).filter((event) => event.data);
    add(events.filter((event) => event.name === "log").map((event) => event.data));
    for (const event of events.filter((one) => one.name === "status")) status = event.data.status;
    if (events.some((event) => event.name === "status")) refresh();
  }
  if (watched === id && !ENDS.has(status)) watched = null; // cut off before its end: the next look begins again
  await refresh();
}

function eventOf(block) {
  const event = { name: "", data: null };
  for (const line of block.split("\r\n")) {
    if (line.startsWith("event: ")) event.name = line.slice(7);
    if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
  }
  return event;
}

function add(lines) {
  if (!lines.length) return;
  const log = at("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(...lines.map(lineOf));
  while (log.childElementCount > KEPT_LINES) log.firstElementChild.remove();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function lineOf(line) {
  const made = document.createElement("div");
  made.textContent = line.message;
  made.className = { ERROR: "bad", CRITICAL: "bad", WARNING: "busy" }[line.level] ?? "";
  return made;
}

setInterval(() => {
  if (!document.hidden && sessionStorage.getItem(KEY)) refresh();
}, LOOK_AGAIN_MS);

if (sessionStorage.getItem(KEY)) refresh();
else askForKey(null);
