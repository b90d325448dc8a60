// An assistant: its active version, and all versions with the differences between two of them.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { assistantName, text } from "../core/format.js";
import { useDocumentTitle } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, navigate, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { AssistantForm, configurationOf } from "../parts/assistant_form.js";
import { useGraphs } from "../parts/graphs.js";
import { Ago, Button, ErrorBox, Id, Json, Loading, Page, Pager, Pill, Table, Tabs, notify } from "../parts/index.js";
import { SideBySide } from "../parts/side_by_side.js";
import { removeAssistant } from "./assistants.js";

const VERSIONS = 50;
const RIGHT = /** @type {const} */ ("right");

export const title = (/** @type {any} */ params) => `Assistant · ${params.name}`;

/** @param {{params: {name: string, id: string}, query: Record<string, string>}} props */
export default function AssistantPage({ params: { name, id }, query }) {
  const found = useResource((signal) => deployment(name).call("GET", `/assistants/${encodeURIComponent(id)}`, { signal }), [name, id]);
  const { graphs } = useGraphs(name);
  const [isEdited, setEdited] = useState(false);
  const it = found.data;
  useDocumentTitle(it && assistantName(it));
  const crumbs = [{ label: name }, { label: "Assistants", href: href(["d", name, "assistants"]) }];
  if (!it) return html`<${Page} title="Assistant" crumbs=${crumbs}><${ErrorBox} error=${found.error} retry=${found.reload} />${!found.error && html`<${Loading} />`}<//>`;
  const remove = async () => {
    if (await removeAssistant(name, it)) navigate(["d", name, "assistants"]);
  };
  const actions = html`
    <a class="button" href=${href(["d", name, "playground", it.graph_id], { assistant: it.assistant_id })}>Open in playground</a>
    ${can("run") && html`
      <${Button} kind="primary" onClick=${() => setEdited(true)}>Change<//>
      <${Button} kind="danger" onClick=${remove}>Delete<//>`}`;
  const tab = query.tab === "versions" ? "versions" : "now";
  const tabs = [{ id: "now", label: `Version ${it.version}` }, { id: "versions", label: "All versions" }];
  return html`
    <${Page} title=${text(it.name || "Untitled", 200)} crumbs=${crumbs} actions=${actions}>
      <dl class="facts">
        <dt>Id</dt><dd><${Id} value=${it.assistant_id} /></dd>
        <dt>Graph</dt><dd><code>${it.graph_id}</code></dd>
        <dt>Created</dt><dd><${Ago} at=${it.created_at} /></dd>
        <dt>Changed</dt><dd><${Ago} at=${it.updated_at} /></dd>
        ${it.description && html`<dt>Description</dt><dd class="wrap">${text(it.description, 4000)}</dd>`}
      </dl>
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      <${Tabs} tabs=${tabs} current=${tab} onChange=${(/** @type {string} */ to) => setQuery({ tab: to === "now" ? null : to })}>
        ${tab === "now" ? html`<${Content} it=${it} />` : html`<${Versions} name=${name} it=${it} query=${query} onChange=${found.reload} />`}
      <//>
      ${isEdited && html`<${AssistantForm} name=${name} assistant=${it} graphs=${graphs} onClose=${() => setEdited(false)}
        onDone=${(/** @type {any} */ changed) => { notify(`Version ${changed.version} is the active one.`); found.reload(); }} />`}
    <//>`;
}

/** @param {{it: any}} props */
function Content({ it }) {
  return html`
    <h2>Context</h2><${Json} value=${it.context} collapsed=${3} label="Context" />
    <h2>Configuration</h2><${Json} value=${configurationOf(it)} collapsed=${3} label="Configuration" />
    <h2>Metadata</h2><${Json} value=${it.metadata} collapsed=${3} label="Metadata" />`;
}

/** @param {{name: string, it: any, query: Record<string, string>, onChange: () => void}} props */
function Versions({ name, it, query, onChange }) {
  const offset = Number(query.offset ?? 0);
  const path = `/assistants/${it.assistant_id}`;
  const found = useResource((signal) => deployment(name).call("POST", `${path}/versions`, { body: { limit: VERSIONS, offset }, signal }), [name, it.assistant_id, it.version, it.updated_at, offset]);
  if (found.error) return html`<${ErrorBox} error=${found.error} retry=${found.reload} />`;
  if (!found.data) return html`<${Loading} />`;
  const versions = /** @type {any[]} */ (found.data);
  const of = (/** @type {string | undefined} */ number) => versions.find((one) => String(one.version) === number);
  const right = of(query.right) ?? of(String(it.version)) ?? versions[0];
  const left = of(query.left) ?? versions.find((one) => one.version < right?.version) ?? right;
  const makeLatest = async (/** @type {number} */ version) => {
    await deployment(name).call("POST", `${path}/latest`, { body: { version } });
    notify(`Version ${version} is the active one.`);
    onChange();
  };
  return html`
    <${Table} label="Versions" rows=${versions} rowKey="version" columns=${columns(it, left, right, makeLatest)} />
    <${Pager} offset=${offset} limit=${VERSIONS} count=${versions.length} onChange=${(/** @type {number} */ to) => setQuery({ offset: to || null, left: null, right: null })} />
    ${right && (left === right
      ? html`<p class="quiet">There is only one version. After a change, two versions are compared here.</p>`
      : html`<h2>Version ${left.version} and version ${right.version}</h2>
        <${SideBySide} before=${comparable(left)} after=${comparable(right)} beforeTitle="Version ${left.version}" afterTitle="Version ${right.version}" />`)}`;
}

/** @param {any} version */
const comparable = (version) => ({
  name: version.name, graph_id: version.graph_id, description: version.description,
  context: version.context, config: configurationOf(version), metadata: version.metadata,
});

/** @param {any} it @param {any} left @param {any} right @param {(version: number) => Promise<void>} makeLatest */
const columns = (it, left, right, makeLatest) => [
  { title: "Version", key: "version", cell: (/** @type {any} */ one) => html`<b>${one.version}</b> ${one.version === it.version && html`<${Pill} status="active" />`}` },
  { title: "Left", key: "left", cell: (/** @type {any} */ one) => choice("left", one.version, left) },
  { title: "Right", key: "right", cell: (/** @type {any} */ one) => choice("right", one.version, right) },
  { title: "Name", key: "name", cell: (/** @type {any} */ one) => assistantName(one) },
  { title: "Created", key: "created", cell: (/** @type {any} */ one) => html`<${Ago} at=${one.created_at} />` },
  {
    title: "", key: "actions", align: RIGHT, hidden: !can("run"),
    cell: (/** @type {any} */ one) => one.version !== it.version && html`<${Button} kind="plain" label="Activate version ${one.version}" onClick=${() => makeLatest(one.version)}>Activate<//>`,
  },
];

/** @param {"left" | "right"} side @param {number} version @param {any} chosen */
const choice = (side, version, chosen) => html`<input type="radio" name=${side} aria-label="Version ${version} on the ${side}" checked=${chosen?.version === version} onChange=${() => setQuery({ [side]: version })} />`;
