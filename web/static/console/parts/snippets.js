// Code that calls a deployment from other programs, to copy.

import { html, useState } from "../core/dom.js";
import { isDev } from "../core/session.js";
import { Code, Tabs } from "./index.js";

/** @type {Record<string, (address: string, graph: string) => string>} */
const WRITTEN = { curl, python, js };
const LANGUAGES = [{ id: "curl", label: "curl" }, { id: "python", label: "Python" }, { id: "js", label: "JavaScript" }];

/** @param {{address: string, graph: string}} props */
export function Snippets({ address, graph }) {
  const [language, setLanguage] = useState("curl");
  return html`<${Tabs} label="Language" tabs=${LANGUAGES} current=${language} onChange=${setLanguage}><${Code} text=${WRITTEN[language](address, graph)} language=${language} /><//>
    <p class="hint">Each graph has its own input. The playground shows its fields.</p>`;
}

/** @param {string} address @param {string} graph */
function curl(address, graph) {
  const key = isDev ? "" : ' -H "X-Api-Key: $RUNYARD_API_KEY"';
  const body = JSON.stringify({ assistant_id: graph, input: { messages: [{ role: "user", content: "Hello!" }] }, stream_mode: ["updates"] });
  return `curl -N ${address}/runs/stream${key} \\\n  -H "Content-Type: application/json" \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
}

/** @param {string} address @param {string} graph */
function python(address, graph) {
  const key = isDev ? "" : ', api_key=os.environ["RUNYARD_API_KEY"]';
  return `${isDev ? "" : "import os\n"}from langgraph_sdk import get_sync_client

client = get_sync_client(url=${JSON.stringify(address)}${key})
thread = client.threads.create()
question = {"messages": [{"role": "user", "content": "Hello!"}]}
for part in client.runs.stream(thread["thread_id"], ${JSON.stringify(graph)}, input=question, stream_mode="updates"):
    print(part.event, part.data)`;
}

/** @param {string} address @param {string} graph */
function js(address, graph) {
  const key = isDev ? "" : ", apiKey: process.env.RUNYARD_API_KEY";
  return `import { Client } from "@langchain/langgraph-sdk";

const client = new Client({ apiUrl: ${JSON.stringify(address)}${key} });
const thread = await client.threads.create();
const input = { messages: [{ role: "user", content: "Hello!" }] };
for await (const part of client.runs.stream(thread.thread_id, ${JSON.stringify(graph)}, { input, streamMode: "updates" })) {
  console.log(part.event, part.data);
}`;
}
