// What there is: each deployment with how it does, the pools, and the last hour, day or week.

import { html } from "../core/dom.js";
import { control, pages } from "../core/api.js";
import { NOTHING, count, duration, percent, rate } from "../core/format.js";
import { href, setQuery } from "../core/router.js";
import { useResource } from "../core/resource.js";
import { Chart, Code, Empty, ErrorBox, Loading, Page, Select, Standing, Table } from "../parts/index.js";
import { servedInWords } from "../parts/standing.js";

const WINDOWS = [{ value: "hour", label: "Last hour" }, { value: "day", label: "Last day" }, { value: "week", label: "Last week" }];
const LOOK_AGAIN_MS = 5000;

/** @typedef {{id: string, name: string, status: string, pool: string, revision_number: number | null, runs_a_minute: number, success: number, failed: number, wait_p50: number | null, duration_p50: number | null, duration_p95: number | null, running: number, waiting: number, oldest_wait_seconds: number, since: string, newest?: any}} Figures */

export const title = () => "Overview";

/** @param {{query: Record<string, string>}} props */
export default function OverviewPage({ query }) {
  const window = WINDOWS.some(({ value }) => value === query.window) ? query.window : "hour";
  const { data, error, loading, reload } = useResource((signal) => figures(window, signal), [window], { every: LOOK_AGAIN_MS });
  const choose = html`<${Select} label="Window" isLabelHidden=${true} value=${window} options=${WINDOWS} onChange=${(/** @type {string} */ value) => setQuery({ window: value === "hour" ? "" : value })} />`;
  return html`
    <${Page} title="Overview" actions=${choose}>
      <${ErrorBox} error=${error} retry=${reload} />
      ${loading && html`<${Loading} />`}
      ${data && html`<${Table} label="Deployments" rows=${data} rowKey="id" columns=${COLUMNS} empty=${NONE} />`}
      ${data && data.length > 0 && html`<${Series} window=${window} />`}
      <${Pools} />
    <//>`;
}

/** @param {string} window @param {AbortSignal} signal @returns {Promise<Figures[]>} */
async function figures(window, signal) {
  const [{ deployments, from: since }, newest] = await Promise.all([control("GET", "/v2/metrics/overview", { query: { window }, signal }), records(signal)]);
  return deployments.map((/** @type {Figures} */ one) => ({ ...one, since, newest: newest.get(one.id) }));
}

/** The record of each deployment, by id. @param {AbortSignal} signal @returns {Promise<Map<string, any>>} */
async function records(signal) {
  const found = new Map();
  for await (const rows of pages((page) => control("GET", "/v2/deployments", { query: page, signal }))) for (const row of rows) found.set(row.id, row);
  return found;
}

const NONE = html`<${Empty} title="Nothing is deployed yet" text="Deploy a project from its directory, or begin with an example:"
  action=${html`<${Code} text=${"runyard new my-agent\nrunyard deploy my-agent"} language="sh" />`} />`;

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { title: "Deployment", key: "name", cell: (row) => html`<a href=${href(["deployments", row.id])}>${row.name}</a>` },
  { title: "Status", key: "status", cell: statusOf },
  { title: "Revision", key: "revision", cell: (row) => (row.revision_number ? servedInWords(row.newest?.traffic, row.revision_number) : html`<span class="quiet">none serves</span>`) },
  { title: "Runs a minute", key: "rate", align: "right", cell: (row) => rate(row.runs_a_minute) },
  { title: "Succeeded", key: "success", align: "right", cell: (row) => count(row.success) },
  { title: "Failed", key: "failed", align: "right", cell: failed },
  { title: "Duration p50", key: "p50", align: "right", cell: (row) => duration(row.duration_p50) },
  { title: "p95", key: "p95", align: "right", cell: (row) => duration(row.duration_p95) },
  { title: "Running", key: "running", align: "right", cell: (row) => count(row.running) },
  { title: "Waiting", key: "waiting", align: "right", cell: waiting },
  { title: "Pool", key: "pool" },
];

/** @param {Figures} row */
function statusOf(row) {
  const { latest_revision_number: newest = null, latest_revision_status: newestStatus = null } = row.newest ?? {};
  return html`<${Standing} ...${{ status: row.status, serving: row.revision_number, newest, newestStatus }} />`;
}

/** @param {Figures} row */
function failed(row) {
  if (!row.failed) return "0";
  const share = percent(row.failed / (row.failed + row.success));
  const list = href(["d", row.name, "runs"], { status: "failures", since: row.since });
  return html`<a class="in-text" href=${list} title="Failed or timed out in this time">${count(row.failed)}</a> <span class="quiet">${share}</span>`;
}

/** @param {Figures} row */
function waiting(row) {
  return row.waiting ? html`${count(row.waiting)} <span class="quiet">${duration(row.oldest_wait_seconds)}</span>` : "0";
}

/** The same figures over time, of the organization or of one deployment. @param {{window: string, deploymentId?: string}} props */
export function Series({ window, deploymentId }) {
  const load = (/** @type {AbortSignal} */ signal) => control("GET", "/v2/metrics/series", { query: { window, deployment_id: deploymentId }, signal });
  const { data, error, reload } = useResource(load, [window, deploymentId], { every: window === "hour" ? 10_000 : 60_000 });
  if (error) return html`<${ErrorBox} error=${error} retry=${reload} />`;
  const points = data?.points ?? [];
  const of = (/** @type {string} */ name) => points.map((/** @type {any} */ point) => [point.at, point[name]]);
  const failures = points.map((/** @type {any} */ point) => [point.at, point.error + point.timeout]);
  const tokens = points.some((/** @type {any} */ point) => point.input_tokens || point.output_tokens);
  return html`
    <h2>${WINDOWS.find(({ value }) => value === window)?.label}</h2>
    <div class="columns">
      <${Chart} label="Runs" kind="bars" series=${[{ label: "succeeded", points: of("success"), color: "good" }, { label: "failed", points: failures, color: "bad" }]} />
      <${Chart} label="Duration" format=${duration} series=${[{ label: "p50", points: of("duration_p50") }, { label: "p95", points: of("duration_p95") }]} />
      <${Chart} label="Wait" format=${duration} series=${[{ label: "p50", points: of("wait_p50") }, { label: "p95", points: of("wait_p95") }]} />
      ${tokens && html`<${Chart} label="Tokens" kind="bars" series=${[{ label: "input", points: of("input_tokens") }, { label: "output", points: of("output_tokens") }]} />`}
    </div>`;
}

function Pools() {
  const { data, error, reload } = useResource((signal) => control("GET", "/v2/workers", { signal }), [], { every: LOOK_AGAIN_MS });
  if (error) return html`<h2>Pools</h2><${ErrorBox} error=${error} retry=${reload} />`;
  if (!data) return null;
  return html`<h2>Pools</h2><${Table} label="Pools" rows=${data.pools} rowKey="name" columns=${POOL_COLUMNS}
    empty=${html`<${Empty} title="No runner is up" text="Nothing runs until one is: runyard up starts one, a Procfile's runner process is one." />`} />`;
}

/** @type {import("../parts/table.js").Column[]} */
const POOL_COLUMNS = [
  { title: "Pool", key: "name" },
  { title: "Runners", key: "runners", align: "right", cell: (row) => html`${row.runners}${row.draining > 0 && html` <span class="quiet">${row.draining} draining</span>`}${row.silent > 0 && html` <span class="bad">+ ${row.silent} silent</span>`}` },
  { title: "Slots in use", key: "running", align: "right", cell: (row) => `${count(row.running)} of ${count(row.slots)}` },
  { title: "Graph hosts", key: "hosts", align: "right" },
  { title: "Waiting", key: "pending", align: "right", cell: (row) => count(row.pending) },
  { title: "Oldest wait", key: "oldest", align: "right", cell: (row) => (row.pending ? duration(row.oldest_wait_seconds) : NOTHING) },
  { title: "Ended a minute", key: "ended", align: "right", cell: (row) => count(row.ended_a_minute) },
];
