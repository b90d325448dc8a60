// A deployment: address, revisions with build logs, log, figures, graphs and settings.

import { html } from "../core/dom.js";
import { deployment } from "../core/api.js";
import { useDeploymentResource } from "../core/deployments.js";
import { revisionName } from "../core/format.js";
import { useDocumentTitle } from "../core/names.js";
import { href, setQuery } from "../core/router.js";
import { useResource } from "../core/resource.js";
import { Ago, Copy, Empty, ErrorBox, Id, Loading, Page, Pill, Select, Standing, Tabs } from "../parts/index.js";
import { DeploymentGraph } from "../parts/deployment_graph.js";
import { DeploymentLog } from "../parts/deployment_log.js";
import { DeploymentSettings, limitsInWords } from "../parts/deployment_settings.js";
import { Revisions } from "../parts/revisions.js";
import { servedInWords, statusesOf } from "../parts/standing.js";
import { Snippets } from "../parts/snippets.js";
import { Series } from "./overview.js";

const LOOK_AGAIN_MS = 4000;
const TABS = [
  { id: "revisions", label: "Revisions" }, { id: "log", label: "Log" }, { id: "figures", label: "Figures" },
  { id: "graphs", label: "Graphs" }, { id: "settings", label: "Settings" },
];
const WINDOWS = [{ value: "hour", label: "Last hour" }, { value: "day", label: "Last day" }, { value: "week", label: "Last week" }];

export const title = () => "Deployment";

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function DeploymentPage({ params, query }) {
  const { data, error, loading, reload } = useDeploymentResource({ id: params.id }, { every: LOOK_AGAIN_MS });
  useDocumentTitle(data && (data.display_name ?? data.name));
  if (loading) return html`<${Loading} />`;
  if (!data) return html`<${Page} title="Deployment" crumbs=${CRUMBS}><${ErrorBox} error=${error} retry=${reload} /><//>`;
  if (data.status === "AWAITING_DELETE") return html`<${Page} title=${data.name} crumbs=${CRUMBS}><${Empty} title="This deployment is being deleted" text="A background job removes its threads, runs and logs." /><//>`;
  const tab = TABS.some(({ id }) => id === query.tab) ? query.tab : "revisions";
  return html`
    <${Page} title=${data.display_name ?? data.name} crumbs=${CRUMBS} status=${html`<${Standing} ...${statusesOf(data)} />`}
      actions=${data.active_revision_id && html`<a href=${href(["d", data.name, "playground"])}>Playground</a><a href=${href(["d", data.name, "threads"])}>Threads</a><a href=${href(["d", data.name, "runs"])}>Runs</a>`}>
      <${ErrorBox} error=${error} />
      <${Facts} record=${data} />
      <${Tabs} tabs=${TABS} current=${tab} onChange=${(/** @type {string} */ id) => setQuery({ tab: id === "revisions" ? "" : id }, { push: true })}>
        ${shown(tab, data, query, reload)}
      <//>
    <//>`;
}

const CRUMBS = [{ label: "Overview", href: href("/") }];

/** @param {string} tab @param {any} record @param {Record<string, string>} query @param {() => void} reload */
function shown(tab, record, query, reload) {
  if (tab === "log") return html`<${DeploymentLog} id=${record.id} query=${query} />`;
  if (tab === "settings") return html`<${DeploymentSettings} record=${record} reload=${reload} />`;
  if (tab === "graphs") return html`<${Served} record=${record}>${(/** @type {any[]} */ assistants) => html`<${DeploymentGraph} name=${record.name} assistants=${assistants} graph=${query.graph} />`}<//>`;
  if (tab === "figures") return html`<${Figures} id=${record.id} window=${query.window ?? "hour"} />`;
  return html`<${Revisions} record=${record} chosen=${query.revision} onChange=${reload} />
    <h2>Call the deployment</h2><${Served} record=${record}>${(/** @type {any[]} */ assistants) => html`<${Snippets} address=${record.source_config.custom_url} graph=${assistants.map((one) => one.graph_id).sort()[0] ?? "agent"} />`}<//>`;
}

/** @param {{record: any}} props */
function Facts({ record }) {
  const address = record.source_config.custom_url;
  const limits = limitsInWords(record);
  return html`
    <dl class="facts">
      <dt>Address</dt><dd>${address ? html`<code>${address}</code> <${Copy} text=${address} />` : "No revision serves yet."}</dd>
      <dt>Serves</dt><dd>${record.active_revision_number ? servedInWords(record.traffic, record.active_revision_number) : "–"}${record.latest_revision_number > (record.active_revision_number ?? 0) && html`, newest ${revisionName(record.latest_revision_number)} <${Pill} status=${record.latest_revision_status} />`}</dd>
      ${record.source_config.repo_url && html`<dt>Repository</dt><dd><code>${record.source_config.repo_url}</code></dd>`}
      <dt>Pool</dt><dd>${record.pool}</dd>
      ${limits.length > 0 && html`<dt>Limits</dt><dd>${limits.map(({ label, limit, used }) => html`<span key=${label} class="limit">${label} <strong>${limit}</strong>${used && html`<span class="quiet">, ${used} used</span>`}</span>`)}</dd>`}
      <dt>Changed</dt><dd><${Ago} at=${record.updated_at} /> <span class="quiet">· id </span><${Id} value=${record.id} /></dd>
    </dl>`;
}

/** Render `children` with the default assistants of a deployment, once a revision serves. @param {{record: any, children?: any}} props */
function Served({ record, children }) {
  const serves = record.active_revision_id;
  const load = (/** @type {AbortSignal} */ signal) => deployment(record.name).call("POST", "/assistants/search", { body: { limit: 100, metadata: { created_by: "system" } }, signal });
  const { data, error, reload } = useResource(serves ? load : async () => [], [record.name, serves]);
  if (!serves) return html`<${Empty} title="No revision serves yet" text="The graphs can be called as soon as a revision is DEPLOYED." />`;
  if (error) return html`<${ErrorBox} error=${error} retry=${reload} />`;
  return data ? children(data) : html`<${Loading} />`;
}

/** @param {{id: string, window: string}} props */
function Figures({ id, window }) {
  return html`<${Select} label="Window" value=${window} options=${WINDOWS} onChange=${(/** @type {string} */ value) => setQuery({ window: value })} />
    <${Series} window=${window} deploymentId=${id} />`;
}
