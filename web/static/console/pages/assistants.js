// The assistants of a deployment: named configurations of its graphs. Filters: graph, name and metadata.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { assistantName, text } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href, navigate, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { AssistantForm } from "../parts/assistant_form.js";
import { useGraphs } from "../parts/graphs.js";
import { Ago, Button, Empty, ErrorBox, Loading, Page, Pager, SearchBox, Select, Table, ask, notify } from "../parts/index.js";
import { parse } from "../parts/json_editor.js";

const PAGE = 25;
const RIGHT = /** @type {const} */ ("right");

export const title = (/** @type {any} */ params) => `Assistants · ${params.name}`;

/** @param {{params: {name: string}, query: Record<string, string>}} props */
export default function AssistantsPage({ params: { name }, query }) {
  const offset = Number(query.offset ?? 0);
  const metadata = parse(query.metadata ?? "");
  const isObject = metadata.value === undefined || (typeof metadata.value === "object" && metadata.value !== null && !Array.isArray(metadata.value));
  const wrong = metadata.error ?? (isObject ? null : 'Metadata must be a JSON object: {"owner": "ann"}');
  const filter = { ...(query.graph && { graph_id: query.graph }), ...(query.name && { name: query.name }), ...(!wrong && metadata.value && { metadata: metadata.value }) };
  const { graphs } = useGraphs(name);
  const found = useResource((signal) => load(name, filter, offset, signal), [name, JSON.stringify(filter), offset]);
  const [isMaking, setMaking] = useState(false);
  const make = can("run") && graphs.length > 0 && html`<${Button} kind="primary" onClick=${() => setMaking(true)}>New assistant<//>`;
  const isFiltered = Object.keys(filter).length > 0;
  const empty = isFiltered
    ? html`<${Empty} title="No assistant matches" action=${html`<${Button} onClick=${() => setQuery({ graph: null, name: null, metadata: null, offset: null })}>Show all<//>`} />`
    : html`<${Empty} title="No assistants yet" text="Each graph has a default assistant as soon as a revision serves." action=${make} />`;
  return html`
    <${Page} title="Assistants" crumbs=${[{ label: name }]} actions=${make}>
      <div class="filters">
        <${Select} label="Graph" value=${query.graph ?? ""} options=${[{ value: "", label: "Any graph" }, ...graphs]} onChange=${(/** @type {string} */ graph) => setQuery({ graph, offset: null })} />
        <${SearchBox} label="Name" placeholder="Part of the name" value=${query.name ?? ""} onInput=${(/** @type {string} */ part) => setQuery({ name: part.trim(), offset: null })} />
        <${SearchBox} label="Metadata" placeholder=${'Metadata: {"owner": "ann"}'} value=${query.metadata ?? ""} onInput=${(/** @type {string} */ written) => setQuery({ metadata: written.trim(), offset: null })} />
      </div>
      ${wrong && html`<p class="bad" role="alert">${wrong}</p>`}
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      ${!found.data && !found.error && html`<${Loading} />`}
      ${found.data && html`
        <${Table} label="Assistants" rows=${found.data.rows} rowKey="assistant_id" columns=${columns(name, found.reload)} empty=${empty}
          onRow=${(/** @type {any} */ it) => navigate(["d", name, "assistants", it.assistant_id])} />
        <${Pager} offset=${offset} limit=${PAGE} count=${found.data.rows.length} total=${found.data.total > PAGE ? found.data.total : null} onChange=${(/** @type {number} */ to) => setQuery({ offset: to || null })} />`}
      ${isMaking && html`<${AssistantForm} name=${name} graphs=${graphs} onClose=${() => setMaking(false)}
        onDone=${(/** @type {any} */ created) => navigate(["d", name, "assistants", created.assistant_id])} />`}
    <//>`;
}

/** A page of assistants, and the number of all that match. @param {string} name @param {any} filter @param {number} offset @param {AbortSignal} signal */
async function load(name, filter, offset, signal) {
  const answer = await deployment(name).respond("POST", "/assistants/search", { body: { ...filter, limit: PAGE, offset, sort_by: "updated_at" }, signal });
  return { rows: await answer.json(), total: Number(answer.headers.get("x-pagination-total")) };
}

/** @param {string} name @param {() => void} reload */
const columns = (name, reload) => [
  { title: "Name", key: "name", cell: (/** @type {any} */ it) => html`<a href=${href(["d", name, "assistants", it.assistant_id])}><b class="cut" title=${text(it.name, 500)}>${assistantName(it)}</b></a>` },
  { title: "Graph", key: "graph", cell: (/** @type {any} */ it) => html`<code>${it.graph_id}</code>` },
  { title: "Version", key: "version", align: RIGHT, cell: (/** @type {any} */ it) => it.version },
  { title: "Description", key: "description", cell: (/** @type {any} */ it) => (it.description ? html`<span class="cut" title=${text(it.description, 500)}>${text(it.description, 60)}</span>` : html`<span class="quiet">–</span>`) },
  { title: "Metadata", key: "metadata", cell: (/** @type {any} */ it) => metadataOf(it) },
  { title: "Changed", key: "changed", cell: (/** @type {any} */ it) => html`<${Ago} at=${it.updated_at} />` },
  {
    title: "", key: "actions", align: RIGHT,
    cell: (/** @type {any} */ it) => html`<span class="row-actions">
      <a href=${href(["d", name, "playground", it.graph_id], { assistant: it.assistant_id })}>Playground</a>
      ${can("run") && html`<${Button} kind="plain" label="Delete ${text(it.name, 60)}" onClick=${() => removeAssistant(name, it).then((is) => is && reload())}>Delete<//>`}</span>`,
  },
];

/** @param {any} it */
function metadataOf({ graph_id, metadata }) {
  const { created_by, ...others } = metadata;
  if (created_by === "system" && !Object.keys(others).length) return html`<span class="quiet cut">default of ${graph_id}</span>`;
  return html`<code class="quiet cut">${text(metadata, 60)}</code>`;
}

/** Delete an assistant after a confirmation. Returns whether it was deleted. @param {string} name @param {any} it @returns {Promise<boolean>} */
export async function removeAssistant(name, it) {
  const isDefault = it.metadata?.created_by === "system";
  const warning = html`<p>All its versions are deleted, and its live runs are cancelled. Threads are kept.</p>
    ${isDefault && html`<p class="bad">This is the default assistant of the graph ${it.graph_id}.</p>`}`;
  if (!(await ask({ title: `Delete ${assistantName(it)}?`, text: warning, action: "Delete", kind: "danger" }))) return false;
  await deployment(name).call("DELETE", `/assistants/${it.assistant_id}`);
  notify("The assistant was deleted.");
  return true;
}
