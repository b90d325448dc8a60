// The overview of an organization: its totals, deployments, failed runs, pools and recent changes, and figures over time.

import { html, useState } from "../core/dom.js";
import { control, pages } from "../core/api.js";
import { count, duration, money, percent, rate } from "../core/format.js";
import { href, setQuery } from "../core/router.js";
import { useResource } from "../core/resource.js";
import { entryInWords, markOf } from "../parts/audit.js";
import { failedOf, filtersOf, isFailure, reasonInWords, sorted, unrecordedInWords } from "../parts/failures.js";
import { Ago, Button, Chart, Code, Empty, ErrorBox, Loading, Page, Select, Standing, Table } from "../parts/index.js";
import { isUnserved, saturationOf } from "../parts/pools.js";
import { servedInWords, statusesOf } from "../parts/standing.js";
import { Bar, Panel, Tile } from "../parts/tiles.js";

const WINDOWS = [{ value: "hour", label: "Last hour" }, { value: "day", label: "Last day" }, { value: "week", label: "Last week" }];
const REFRESH_MS = 5000, REFRESH_SLOWLY_MS = 60_000;
const MOST_DEPLOYMENTS = 6, MOST_REASONS = 6, MOST_CHANGES = 7; // rows before "Show all", so that the page fits a screen
const LOADED_CHANGES = 30;
const FULL_HEIGHT = 24; // lines of the placeholder
const COST_DAYS = 7, DAY_MS = 86_400_000;

/** @typedef {{id: string, name: string, pool: string, revision_number: number | null, runs_a_minute: number, success: number, failed: number, wait_p50: number | null, duration_p50: number | null, duration_p95: number | null, running: number, waiting: number, oldest_wait_seconds: number}} Figures */
/** @typedef {Figures & {record?: any, since: string, until: string, failures?: import("../parts/failures.js").Failures}} Row */

export const title = () => "Overview";

/** @param {{query: Record<string, string>}} props */
export default function OverviewPage({ query }) {
  const window = WINDOWS.some(({ value }) => value === query.window) ? query.window : "hour";
  const figures = useResource((signal) => control("GET", "/v2/metrics/overview", { query: { window }, signal }), [window], { every: REFRESH_MS });
  const records = useResource(recordsById, [], { every: REFRESH_MS });
  const failures = useResource((signal) => control("GET", "/v2/metrics/failures", { query: { window }, signal }), [window], { every: window === "hour" ? REFRESH_MS : 3 * REFRESH_MS });
  const workers = useResource((signal) => control("GET", "/v2/workers", { signal }), [], { every: REFRESH_MS });
  const changes = useResource((signal) => control("GET", "/v2/audit", { query: { limit: LOADED_CHANGES }, signal }), [], { every: REFRESH_MS });
  const series = useSeries(window);
  const questions = useResource(openQuestions, [], { every: REFRESH_MS });
  const cost = useCost();
  const resources = [figures, records, failures, workers, changes, series, questions, cost];
  const broken = resources.find(({ error }) => error);
  const retry = () => resources.forEach(({ reload }) => reload());

  const known = records.data;
  const rows = figures.data && known && figures.data.deployments.map((/** @type {Figures} */ one) => ({ ...one, record: known[one.id], since: figures.data.from, until: figures.data.until, failures: failures.data }));
  const isEmpty = rows?.length === 0;
  const choose = html`<${Select} label="Window" isLabelHidden=${true} value=${window} options=${WINDOWS} onChange=${(/** @type {string} */ value) => setQuery({ window: value === "hour" ? "" : value })} />`;
  return html`
    <${Page} title="Overview" actions=${choose}>
      <${ErrorBox} error=${broken?.error} retry=${retry} />
      ${broken && rows && html`<p class="quiet">The page shows the last known values and asks again every ${REFRESH_MS / 1000} seconds.</p>`}
      ${resources.some(({ loading }) => loading) ? html`<${Loading} lines=${FULL_HEIGHT} />` : content()}
    <//>`;

  // Is rendered when all parts are loaded, because each part moves those below it.
  function content() {
    return html`
      ${isEmpty ? NONE : html`
        <${Totals} rows=${rows} series=${series.data} questions=${questions.data} cost=${cost.data && costOf(cost.data.usage, Date.now())} />
        ${rows && html`<${Deployments} rows=${rows} />`}`}
      <div class="overview-panels">
        ${!isEmpty && failures.data && html`<${Failed} failures=${failures.data} />`}
        ${workers.data && html`<${Pools} pools=${workers.data.pools} />`}
        ${changes.data && html`<${Changes} changes=${changes.data.resources} known=${known ?? {}} />`}
      </div>
      ${!isEmpty && html`<${Charts} window=${window} series=${series.data} />`}`;
  }
}

/** The records of all deployments by id. @param {AbortSignal} signal @returns {Promise<Record<string, any>>} */
async function recordsById(signal) {
  /** @type {Record<string, any>} */
  const records = {};
  for await (const rows of pages((page) => control("GET", "/v2/deployments", { query: page, signal }))) for (const row of rows) records[row.id] = row;
  return records;
}

/** @param {string} window @param {string} [deploymentId] */
function useSeries(window, deploymentId) {
  const load = (/** @type {AbortSignal} */ signal) => control("GET", "/v2/metrics/series", { query: { window, deployment_id: deploymentId }, signal });
  return useResource(load, [window, deploymentId], { every: window === "hour" ? 2 * REFRESH_MS : REFRESH_SLOWLY_MS });
}

const NONE = html`<${Empty} title="Nothing is deployed yet" text="Deploy a project from its directory, or begin with an example:"
  action=${html`<${Code} text=${"runyard new my-agent\nrunyard deploy my-agent"} language="sh" />`} />`;

/** Tiles without values for figures that cannot be loaded. @param {{rows?: Row[], series: any, questions?: number | null, cost?: ReturnType<typeof costOf>}} props */
function Totals({ rows = [], series, questions, cost }) {
  const waiting = rows.reduce((sum, row) => sum + row.waiting, 0), running = rows.reduce((sum, row) => sum + row.running, 0);
  const oldest = Math.max(...rows.map((row) => (row.waiting ? row.oldest_wait_seconds : 0)));
  const total = series?.total;
  const of = (/** @type {(point: any) => number | null} */ value) => series?.points.map(value) ?? [];
  const ended = (/** @type {any} */ point) => point.success + point.error + point.timeout + point.interrupted;
  const failed = (/** @type {any} */ point) => point.error + point.timeout;
  const tokens = (/** @type {any} */ point) => point.input_tokens + point.output_tokens;
  return html`
    <div class="tiles">
      <${Tile} label="Runs ended" value=${count(total && ended(total))} note=${total && `${count(total.created)} created`} points=${of(ended)} />
      <${Tile} label="Failed" value=${html`<span class=${total && failed(total) ? "bad" : ""}>${count(total && failed(total))}</span>`}
        note=${total && ended(total) > 0 && `${percent(failed(total) / ended(total))} of those ended`} points=${of(failed)} color="bad" />
      <${Tile} label="Duration p95" value=${duration(total?.duration_p95)} note=${total && `p50 ${duration(total.duration_p50)}`} points=${of((point) => point.duration_p95)} color="series-4" />
      <${Tile} label="Waiting now" value=${html`<span class=${waiting && oldest > 60 ? "bad" : ""}>${count(rows.length ? waiting : null)}</span>`} title="The line shows the 95th percentile of the wait"
        note=${rows.length > 0 && `${waiting ? `oldest ${duration(oldest)} · ` : ""}${count(running)} running`} points=${of((point) => point.wait_p95)} color="series-2" />
      <${Tile} label="Tokens" href=${href("/usage")} value=${count(total && tokens(total))} note=${total && `${count(total.input_tokens)} in · ${count(total.output_tokens)} out`} points=${of(tokens)} color="series-3" />
      ${cost && html`<${Tile} label="Cost today" href=${href("/usage")} value=${money(cost.today)} note=${`${money(cost.sum)} in ${COST_DAYS} days`} points=${cost.days} color="series-5" title="Days in UTC" />`}
      ${questions !== undefined && questions !== null && html`<${Tile} label="Open questions" href=${href("/inbox")} value=${count(questions)} note=${questions ? "wait for a person" : "nobody is asked"} />`}
    </div>`;
}

/** The number of open questions; null if this service has no inbox. @param {AbortSignal} signal @returns {Promise<number | null>} */
async function openQuestions(signal) {
  try {
    return (await control("GET", "/v2/inbox", { query: { limit: 0 }, signal })).total;
  } catch (error) {
    if ([403, 404].includes(/** @type {any} */ (error).status)) return null;
    throw error;
  }
}

function useCost() {
  return useResource((signal) => {
    const from = new Date(Date.now() - (COST_DAYS - 1) * DAY_MS).toISOString().slice(0, 10);
    return control("GET", "/v2/usage", { query: { from, by: "day" }, signal });
  }, [], { every: REFRESH_SLOWLY_MS });
}

/**
 * Today's cost, the sum, and the cost of each of the last days; null if no day has a cost above 0.
 * @param {{day: string, cost: number | null}[]} usage @param {number} now milliseconds
 * @returns {{today: number | null, sum: number, days: number[]} | null} `today`: null if a model that was used today has no price
 */
export function costOf(usage, now) {
  const known = new Map(usage.map(({ day, cost }) => [day, cost]));
  const dates = Array.from({ length: COST_DAYS }, (_, at) => new Date(now - (COST_DAYS - 1 - at) * DAY_MS).toISOString().slice(0, 10));
  const today = dates[COST_DAYS - 1];
  const days = dates.map((day) => known.get(day) ?? 0);
  const sum = days.reduce((total, cost) => total + cost, 0);
  return sum > 0 ? { today: known.has(today) ? (known.get(today) ?? null) : 0, sum, days } : null;
}

/** @param {{rows: Row[]}} props */
function Deployments({ rows }) {
  const [isOpen, setOpen] = useState(false);
  const hasPools = new Set(rows.map(({ pool }) => pool)).size > 1;
  const shown = isOpen || rows.length <= MOST_DEPLOYMENTS ? rows : [...rows].sort((one, other) => Number(needsAttention(other)) - Number(needsAttention(one))).slice(0, MOST_DEPLOYMENTS);
  return html`
    <${Table} label="Deployments" rows=${shown} rowKey="id" columns=${hasPools ? COLUMNS : COLUMNS.filter(({ key }) => key !== "pool")} />
    ${rows.length > MOST_DEPLOYMENTS && html`<p class="overview-more"><${Button} kind="plain" onClick=${() => setOpen(!isOpen)}>${isOpen ? "Show fewer" : `Show all ${count(rows.length)} deployments`}<//></p>`}`;
}

/** Whether a deployment belongs at the top of a shortened list. @param {Row} row */
export function needsAttention(row) {
  const { latest_revision_status: newest = "DEPLOYED" } = row.record ?? {};
  return row.failed > 0 || row.waiting > 0 || String(newest).endsWith("FAILED");
}

/** `priority`: 1 is shown first in cards, 3 is left out there. @type {(import("../parts/table.js").Column & {primary?: boolean, priority?: 1 | 2 | 3})[]} */
const COLUMNS = [
  { title: "Deployment", key: "name", primary: true, cell: (row) => html`<a class="deployment-name" title=${row.name} href=${href(["deployments", row.id])}>${row.name}</a>` },
  { title: "Status", key: "status", cell: (row) => row.record && html`<${Standing} ...${statusesOf(row.record)} />` },
  { title: "Revision", key: "revision", cell: (row) => (row.record?.active_revision_number ? servedInWords(row.record.traffic, row.record.active_revision_number) : html`<span class="quiet">none</span>`) },
  { title: "Runs a minute", key: "rate", align: "right", priority: 3, cell: (row) => rate(row.runs_a_minute) },
  { title: "Succeeded", key: "success", align: "right", cell: (row) => count(row.success) },
  { title: "Failed", key: "failed", align: "right", cell: failedCell },
  { title: "p50", key: "p50", align: "right", priority: 3, cell: (row) => duration(row.duration_p50) },
  { title: "p95", key: "p95", align: "right", cell: (row) => duration(row.duration_p95) },
  { title: "Running", key: "running", align: "right", cell: (row) => (row.running ? html`<a class="in-text" href=${href(["d", row.name, "runs"], { status: "running" })}>${count(row.running)}</a>` : "0") },
  { title: "Waiting", key: "waiting", align: "right", cell: waitingCell },
  { title: "Pool", key: "pool" },
];

/** A link to the runs that have a record; the others are named beside it. @param {Row} row */
function failedCell(row) {
  if (!row.failed) return "0";
  const known = row.failures && failedOf(row.failures, row.id);
  const { from: since, until } = row.failures ?? { from: row.since, until: row.until };
  const recorded = known ? known.recorded : row.failed;
  const list = href(["d", row.name, "runs"], { status: "failures", since, until });
  return html`
    ${recorded > 0 ? html`<a class="in-text" href=${list} title="Runs that failed or timed out in this time">${count(recorded)}</a>` : "0"}
    ${known && known.unrecorded > 0 && html` <span class="quiet" title="Left no record: stateless runs, and runs of deleted threads">+ ${count(known.unrecorded)} unrecorded</span>`}`;
}

/** @param {Row} row */
function waitingCell(row) {
  if (!row.waiting) return "0";
  return html`<a class="in-text" href=${href(["d", row.name, "runs"], { status: "pending" })}>${count(row.waiting)}</a> <span class="quiet">${duration(row.oldest_wait_seconds)}</span>`;
}

/** @param {{failures: import("../parts/failures.js").Failures}} props */
function Failed({ failures }) {
  const [isOpen, setOpen] = useState(false);
  const reasons = sorted(failures.reasons);
  const most = Math.max(...reasons.map(({ runs }) => runs), 1);
  const unrecorded = unrecordedInWords(failures);
  const shown = isOpen ? reasons : reasons.slice(0, MOST_REASONS);
  return html`
    <${Panel} title="Failed runs by reason">
      ${reasons.length === 0 && html`<p class="quiet">${unrecorded ? "No failed run has a record." : "No run failed in this time."}</p>`}
      <ul class="rows">
        ${shown.map((reason) => html`
          <li key=${`${reason.deployment_id} ${reason.status} ${reason.error}`} class="row-of-bar">
            <a class="row-name" href=${href(["d", reason.deployment, "runs"], filtersOf(failures, reason))} title=${`${reasonInWords(reason)}, ${reason.deployment}`}>${reasonInWords(reason)} <span class="quiet">${reason.deployment}</span></a>
            <span class="row-value"><b>${count(reason.runs)}</b> <span class="quiet"><${Ago} at=${reason.last_ended_at} /></span></span>
            <${Bar} part=${reason.runs / most} kind=${isFailure(reason) ? "bad" : "warn"} />
          </li>`)}
      </ul>
      ${reasons.length > MOST_REASONS && html`<p class="overview-more"><${Button} kind="plain" onClick=${() => setOpen(!isOpen)}>${isOpen ? "Show fewer" : `Show all ${count(reasons.length)} reasons`}<//></p>`}
      ${unrecorded && html`<p class="quiet note">${unrecorded}</p>`}
      ${failures.incomplete.length > 0 && html`<p class="quiet note">Of deployments with very many failures only the newest 2,000 are counted.</p>`}
    <//>`;
}

/** @param {{pools: any[]}} props */
function Pools({ pools }) {
  return html`
    <${Panel} title="Pools" note=${html`<a href=${href("/workers")}>Workers</a>`}>
      ${pools.length === 0 && html`<p class="quiet">No runner is up. Runs wait until one is started: <code>runyard up</code> starts one.</p>`}
      <ul class="rows">
        ${pools.map((pool) => html`
          <li key=${pool.name} class="row-of-bar">
            <span class="row-name"><b>${pool.name}</b></span>
            <span class="row-value"><b>${count(pool.running)}</b> of ${count(pool.slots)} slots</span>
            <${Bar} part=${isUnserved(pool) ? 1 : pool.slots ? pool.running / pool.slots : 0} kind=${saturationOf(pool)} />
            <span class="row-note">${runnersInWords(pool)}${pool.silent > 0 && html`, <span class="bad">${count(pool.silent)} silent</span>`} · <span class=${isUnserved(pool) ? "bad" : ""}>${waitInWords(pool)}</span></span>
          </li>`)}
      </ul>
    <//>`;
}

/** @param {any} pool */
function runnersInWords({ runners, draining }) {
  const words = runners === 1 ? "1 runner" : `${count(runners)} runners`;
  return draining > 0 ? `${words}, ${count(draining)} draining` : words;
}

/** @param {any} pool */
function waitInWords(pool) {
  if (!pool.pending) return "nothing waits";
  const words = `${count(pool.pending)} ${pool.pending === 1 ? "waits" : "wait"}, the oldest for ${duration(pool.oldest_wait_seconds)}`;
  return isUnserved(pool) ? `${words}: no runner takes them` : words;
}

/** @param {{changes: import("../parts/audit.js").Entry[], known: Record<string, any>}} props */
function Changes({ changes, known }) {
  const [isOpen, setOpen] = useState(false);
  return html`
    <${Panel} title="Latest changes">
      ${changes.length === 0 && html`<p class="quiet">Deploys, changes of traffic and changes of keys are listed here.</p>`}
      <ul class="rows changes">
        ${(isOpen ? changes : changes.slice(0, MOST_CHANGES)).map((change) => html`
          <li key=${change.id}>
            <i class=${`change-mark ${markOf(change)}`} aria-hidden="true"></i>
            <span class="change-text">${subjectOf(change, known)} ${entryInWords(change)}${change.actor && html` <span class="quiet">by ${change.actor.name}</span>`}</span>
            <span class="quiet"><${Ago} at=${change.at} /></span>
          </li>`)}
      </ul>
      ${changes.length > MOST_CHANGES && html`<p class="overview-more"><${Button} kind="plain" onClick=${() => setOpen(!isOpen)}>${isOpen ? "Show fewer" : "Show earlier changes"}<//> <a class="in-text" href=${href("/audit")}>Audit log</a></p>`}
    <//>`;
}

/** @param {import("../parts/audit.js").Entry} change @param {Record<string, any>} known */
function subjectOf({ deployment_id: id, subject }, known) {
  return id && known[id] ? html`<a class="in-text" href=${href(["deployments", id])}>${subject}</a>` : html`<b>${subject}</b>`;
}

/** Figures over time of the organization or of one deployment. @param {{window: string, deploymentId?: string}} props */
export function Series({ window, deploymentId }) {
  const { data, error, reload } = useSeries(window, deploymentId);
  if (error) return html`<${ErrorBox} error=${error} retry=${reload} />`;
  return html`<${Charts} window=${window} series=${data} />`;
}

/** @param {{window: string, series: any}} props */
function Charts({ window, series }) {
  const points = series?.points ?? [];
  const of = (/** @type {string} */ name) => points.map((/** @type {any} */ point) => [point.at, point[name]]);
  const failures = points.map((/** @type {any} */ point) => [point.at, point.error + point.timeout]);
  const tokens = !series || points.some((/** @type {any} */ point) => point.input_tokens || point.output_tokens);
  return html`
    <h2>${WINDOWS.find(({ value }) => value === window)?.label}</h2>
    <div class=${tokens ? "charts even" : "charts"}>
      <${Chart} label="Runs" kind="bars" series=${[{ label: "succeeded", points: of("success"), color: "good" }, { label: "failed", points: failures, color: "bad" }]} />
      <${Chart} label="Duration" format=${duration} series=${[{ label: "p50", points: of("duration_p50") }, { label: "p95", points: of("duration_p95") }]} />
      <${Chart} label="Wait" format=${duration} series=${[{ label: "p50", points: of("wait_p50") }, { label: "p95", points: of("wait_p95") }]} />
      ${tokens && html`<${Chart} label="Tokens" kind="bars" series=${[{ label: "input", points: of("input_tokens") }, { label: "output", points: of("output_tokens") }]} />`}
    </div>`;
}
