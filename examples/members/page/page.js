// The page calls its own deployment: relative addresses, and the user's token with each request.

const at = (selector) => document.querySelector(selector);
const TOKEN = "members-token", NAME = "members-name";
const kept = storage();
let thread = null; // the conversation that is shown; none: the next message begins one

// Where deployments share an address their pages are sandboxed and may keep nothing: one signs in again after a reload.
function storage() {
  try {
    return window.sessionStorage;
  } catch {
    const items = new Map();
    return {
      getItem: (key) => items.get(key) ?? null, setItem: (key, value) => items.set(key, value), clear: () => items.clear(),
    };
  }
}

async function call(path, body) {
  const token = kept.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method: body === undefined ? "GET" : "POST", headers, body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.ok) return answer;
  const { detail } = await answer.json().catch(() => ({}));
  if (answer.status === 401 && token) signOut();
  throw new Error(detail ?? `The service answered ${answer.status}.`);
}

// Events of a stream: blocks of lines, with an empty line between them
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending = (pending + value).replaceAll("\r\n", "\n");
    for (let end; (end = pending.indexOf("\n\n")) >= 0; pending = pending.slice(end + 2)) {
      const lines = pending.slice(0, end).split("\n");
      const of = (field) => lines.filter((line) => line.startsWith(field)).map((line) => line.slice(field.length).trim());
      const data = of("data:").join("\n");
      if (data) yield { event: of("event:")[0], data: JSON.parse(data) };
    }
  }
}

function show(type, text) {
  const line = document.createElement("li");
  line.className = type;
  line.textContent = text;
  at("#messages").append(line);
  return line;
}

async function ask(text) {
  const lines = [show("human", text), show("ai", "…")];
  at("#ask button").disabled = true; // one message at a time
  try {
    await answered(text, lines[1]);
  } catch (error) {
    lines.forEach((line) => line.remove());
    at("#ask").text.value ||= text; // to be sent once more
    throw error;
  } finally {
    at("#ask button").disabled = false;
  }
}

async function answered(text, answer) {
  thread ??= (await (await call("threads", { metadata: { title: text.slice(0, 60) } })).json()).thread_id;
  const input = { messages: [{ role: "user", content: text }] };
  const stream = await call(`threads/${thread}/runs/stream`, {
    assistant_id: "members", input, stream_mode: ["messages-tuple"],
  });
  let said = "";
  for await (const { event, data } of events(stream)) {
    if (event === "error") throw new Error(data.message ?? "The run failed.");
    if (event === "messages") answer.textContent = said += data[0].content;
  }
}

async function list() {
  const found = await (await call("threads/search", { limit: 20 })).json();
  at("nav ul").replaceChildren(...found.map((one) => {
    const line = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.textContent = one.metadata.title ?? "Conversation";
    button.setAttribute("aria-current", String(one.thread_id === thread));
    button.onclick = () => tried(() => open(one.thread_id));
    line.append(button);
    return line;
  }));
}

async function open(id) {
  const { values } = await (await call(`threads/${id}/state`)).json();
  thread = id;
  at("#messages").replaceChildren();
  for (const message of values.messages ?? []) show(message.type, message.content);
  await list();
}

function signOut() {
  kept.clear();
  thread = null;
  at("#messages").replaceChildren();
  refresh();
}

function refresh() {
  const name = kept.getItem(NAME);
  at("#login").hidden = Boolean(name);
  at("main").hidden = at("#who").hidden = !name;
  at("#who span").textContent = name ?? "";
  if (name) tried(list);
}

async function tried(what) {
  at("#notice").textContent = "";
  try {
    await what();
  } catch (error) {
    at("#notice").textContent = error.message;
  }
}

at("#login").onsubmit = (event) => {
  event.preventDefault();
  tried(async () => {
    const { token, name } = await (await call("login", Object.fromEntries(new FormData(event.target)))).json();
    kept.setItem(TOKEN, token);
    kept.setItem(NAME, name);
    event.target.reset();
    refresh();
  });
};
at("#ask").onsubmit = (event) => {
  event.preventDefault();
  const text = event.target.text.value;
  event.target.reset();
  tried(() => ask(text).then(list));
};
at("#new").onclick = () => {
  thread = null;
  at("#messages").replaceChildren();
  tried(list);
};
at("#who button").onclick = signOut;
refresh();
