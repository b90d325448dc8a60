// The playground: run a graph from a chat or a form, and see its nodes, steps and state while it works.

import { html, useEffect, useMemo, useState } from "../core/dom.js";
import { deployment as at } from "../core/api.js";
import { assistantName } from "../core/format.js";
import { href, navigate, setQuery } from "../core/router.js";
import { useResource } from "../core/resource.js";
import { Button, Empty, ErrorBox, Loading, Page, Select, notify } from "../parts/index.js";
import { AssistantEditor } from "../parts/assistant_editor.js";
import { Composer } from "../parts/composer.js";
import { ThreadPicker } from "../parts/thread_picker.js";
import { Conversation } from "../parts/conversation.js";
import { Observed } from "../parts/observed.js";
import { runControl } from "../parts/run_control.js";
import { can } from "../core/session.js";

const MOST_ASSISTANTS = 1000;

/** @param {Record<string, string>} params */
export const title = (params) => `Playground · ${params.name}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function PlaygroundPage({ params, query }) {
  const { name, graph } = params;
  const { data: assistants, error, reload } = useResource((signal) => at(name).call("POST", "/assistants/search", {
    body: { limit: MOST_ASSISTANTS, sort_by: "created_at", sort_order: "asc" }, signal,
  }), [name]);
  const crumbs = [{ label: name }, { label: "Playground" }];
  if (error) return html`<${Page} title="Playground" crumbs=${crumbs}><${ErrorBox} error=${error} retry=${reload} /><//>`;
  if (!assistants) return html`<${Page} title="Playground" crumbs=${crumbs}><${Loading} /><//>`;
  if (!assistants.length) return html`<${Page} title="Playground" crumbs=${crumbs}><${Empty} title="No graph to run" text="The deployment has no assistants. Deploy a revision to run its graphs here." /><//>`;
  const graphId = graph ?? chosen(assistants, query.assistant)?.graph_id ?? assistants[0].graph_id;
  const ofGraph = assistants.filter((/** @type {any} */ each) => each.graph_id === graphId);
  const assistant = chosen(ofGraph, query.assistant) ?? ofGraph.find(isDefault) ?? ofGraph[0];
  if (!assistant) return html`<${Page} title="Playground" crumbs=${crumbs}><${Empty} title=${`There is no graph ${graphId}`} text="No assistant of this deployment uses a graph of this name."
    action=${html`<a href=${href(["d", name, "playground"])}>Show the other graphs</a>`} /><//>`;
  return html`<${Playground} key=${`${name}/${graphId}`} name=${name} graphId=${graphId} assistant=${assistant} assistants=${assistants} threadId=${query.thread ?? null} reload=${reload} />`;
}

/** @param {any[]} assistants @param {string|undefined} id */
const chosen = (assistants, id) => assistants.find((each) => each.assistant_id === id);

/** @param {any} assistant */
const isDefault = (assistant) => assistant.metadata?.created_by === "system";

/** @param {{name: string, graphId: string, assistant: any, assistants: any[], threadId: string|null, reload: () => void}} props */
function Playground({ name, graphId, assistant, assistants, threadId, reload }) {
  const control = useControl(name, threadId);
  const { data: schemas, error } = useResource((signal) => at(name).call("GET", `/assistants/${assistant.assistant_id}/schemas`, { signal }), [name, assistant.assistant_id, assistant.version]);
  const [editing, setEditing] = useState(/** @type {"new"|"change"|null} */ (null));
  const saved = (/** @type {any} */ record) => {
    notify(editing === "new" ? `The assistant ${assistantName(record)} was created.` : `Version ${record.version} of ${assistantName(record)} was saved. The next runs use it.`);
    setEditing(null);
    reload();
    setQuery({ assistant: record.assistant_id });
  };
  const run = (/** @type {Record<string, any>} */ body, /** @type {any} */ message) =>
    control.start({ assistantId: assistant.assistant_id, graphId, body, message });
  return html`
    <${Page} title="Playground" crumbs=${[{ label: name }, { label: graphId, href: href(["d", name, "playground", graphId]) }]}>
      <div class="play-bar">
        <${GraphSelect} name=${name} graphId=${graphId} assistants=${assistants} />
        <${AssistantSelect} graphId=${graphId} assistant=${assistant} assistants=${assistants} />
        ${can("run") && html`<span class="play-buttons">
          <${Button} onClick=${() => setEditing("change")} label="Change the assistant" title="Create a new version of the assistant">Change<//>
          <${Button} onClick=${() => setEditing("new")} label="New assistant">New<//>
        </span>`}
        <${ThreadPicker} name=${name} graphId=${graphId} threadId=${threadId} phase=${control.view.phase} />
      </div>
      ${error && html`<${ErrorBox} error=${error} />`}
      <div class="play">
        <${Observed} name=${name} assistantId=${assistant.assistant_id} threadId=${threadId} view=${control.view} />
        <section class="play-main" aria-label="Run">
          <${Conversation} control=${control} schemas=${schemas} threadId=${threadId} run=${run} />
          ${schemas ? html`<${Composer} key=${assistant.assistant_id} schemas=${schemas} control=${control} run=${run} />` : html`<${Loading} />`}
        </section>
      </div>
    <//>
    ${editing && html`<${AssistantEditor} deployment=${name} graphId=${graphId} assistant=${editing === "change" ? assistant : null} onClose=${() => setEditing(null)} onSaved=${saved} />`}`;
}

/** The control of the thread's runs while the page is shown. @param {string} name @param {string|null} threadId */
function useControl(name, threadId) {
  const control = useMemo(() => runControl(at(name), {
    onThread: (id) => setQuery({ thread: id }),
    onError: (error) => notify(error.detail ?? String(error), "error"),
  }), [name]);
  useEffect(() => void control.open(threadId), [control, threadId]);
  useEffect(() => control.leave, [control]);
  return control;
}

/** @param {{name: string, graphId: string, assistants: any[]}} props */
function GraphSelect({ name, graphId, assistants }) {
  const graphs = [...new Set(assistants.map((each) => each.graph_id))].sort();
  return html`<${Select} label="Graph" value=${graphId} options=${graphs} onChange=${(/** @type {string} */ id) => navigate(["d", name, "playground", id])} />`;
}

/** @param {{graphId: string, assistant: any, assistants: any[]}} props */
function AssistantSelect({ graphId, assistant, assistants }) {
  const options = assistants.filter((each) => each.graph_id === graphId)
    .map((each) => ({ value: each.assistant_id, label: `${assistantName(each)}${isDefault(each) ? " (default)" : ""} · v${each.version}` }));
  return html`<${Select} label="Assistant" value=${assistant.assistant_id} options=${options} onChange=${(/** @type {string} */ id) => setQuery({ assistant: id })} />`;
}
