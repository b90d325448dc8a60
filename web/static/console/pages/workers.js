// The workers, updated live: pools with their load and backlog, runners, builders, and graph hosts.

import { control } from "../core/api.js";
import { html } from "../core/dom.js";
import { bytes, count, duration } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { can } from "../core/session.js";
import { isUnserved, saturationOf } from "../parts/pools.js";
import { Bar, Tile } from "../parts/tiles.js";
import { Ago, Empty, ErrorBox, Button, Loading, Page, Pill, Table, ask, notify } from "../parts/index.js";

const RIGHT = /** @type {const} */ ("right");
const REFRESH_MS = 2000;
const ISOLATION = ["no separation", "separate user", "bubblewrap"];

export const title = () => "Workers";

export default function WorkersPage() {
  const found = useResource((signal) => control("GET", "/v2/workers", { signal }), [], { every: REFRESH_MS });
  const act = (/** @type {any} */ worker) => (worker.state === "draining" ? resume : askAndDrain)(worker, found.reload);
  const workers = found.data?.workers ?? [];
  const of = (/** @type {string} */ kind) => workers.filter((/** @type {any} */ worker) => worker.kind === kind);
  const hosts = workers.flatMap((/** @type {any} */ worker) => worker.hosts.map((/** @type {any} */ host) => ({ ...host, worker: worker.id })));
  const hidden = workers.reduce((/** @type {number} */ sum, /** @type {any} */ worker) => sum + worker.host_count, 0) - hosts.length;

  return html`
    <${Page} title="Workers">
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      ${!found.data && !found.error && html`<${Loading} />`}
      ${found.data && html`
        <${Totals} pools=${found.data.pools} workers=${workers} />
        <${Section} title="Pools">
          <${Table} label="Pools" rows=${found.data.pools} rowKey=${(/** @type {any} */ pool) => pool.name} columns=${POOLS}
            empty=${html`<${Empty} title="No pools" text="A pool appears with its first runner, deployment or run." />`} /><//>
        <${Section} title="Runners">
          <${Table} label="Runners" rows=${of("runner")} rowKey=${idOf} columns=${columns("runner", act)}
            empty=${html`<${Empty} title="No runner" text="Runs wait until a runner is started, for example by the line “runner” of the Procfile." />`} /><//>
        <${Section} title="Builders">
          <${Table} label="Builders" rows=${of("builder")} rowKey=${idOf} columns=${columns("builder", act)}
            empty=${html`<${Empty} title="No builder" text="Revisions wait until a builder is started, for example by the line “builder” of the Procfile." />`} /><//>
        <${Section} title="Graph hosts">
          <${Table} label="Graph hosts" rows=${hosts} rowKey=${(/** @type {any} */ host) => `${host.worker} ${host.pid}`} columns=${HOSTS}
            empty=${html`<${Empty} title="No graph host" text="A graph host starts with the first run of a deployment and stops when it is idle for a while." />`} />
          ${hidden > 0 && html`<p class="quiet">${count(hidden)} more belong to other organizations.</p>`}<//>`}
    <//>`;
}

/** @param {{pools: any[], workers: any[]}} props */
function Totals({ pools, workers }) {
  const sum = (/** @type {string} */ name) => pools.reduce((total, pool) => total + pool[name], 0);
  const silent = workers.filter(({ state }) => state === "silent").length, draining = workers.filter(({ state }) => state === "draining").length;
  const waiting = pools.filter(({ pending }) => pending > 0);
  const oldest = Math.max(0, ...waiting.map((pool) => pool.oldest_wait_seconds));
  return html`
    <div class="tiles plain">
      <${Tile} label="Slots in use" value=${`${count(sum("running"))} of ${count(sum("slots"))}`} note=${`in ${count(pools.length)} ${pools.length === 1 ? "pool" : "pools"}`} />
      <${Tile} label="Waiting runs" value=${html`<span class=${pools.some(isUnserved) ? "bad" : ""}>${count(sum("pending"))}</span>`} note=${waiting.length > 0 && `oldest ${duration(oldest)}`} />
      <${Tile} label="Workers" value=${count(workers.length - silent)} note=${draining > 0 && `${count(draining)} draining`} />
      <${Tile} label="Silent workers" value=${html`<span class=${silent ? "bad" : ""}>${count(silent)}</span>`} note=${silent > 0 && "send no heartbeat"} />
      <${Tile} label="Graph hosts" value=${count(sum("hosts"))} />
    </div>`;
}

/** @type {Record<string, string>} */
const ACTIONS = { ready: "Drain", draining: "Resume" };

const idOf = (/** @type {any} */ worker) => worker.id;

/** @param {{title: string, children?: any}} props */
function Section({ title: heading, children }) {
  return html`<section><h2>${heading}</h2>${children}</section>`;
}

const POOLS = [
  { title: "Pool", key: "name", cell: (/** @type {any} */ pool) => html`<b>${pool.name}</b>` },
  {
    title: "Runners", key: "runners", align: RIGHT,
    cell: (/** @type {any} */ pool) => html`<span class=${isUnserved(pool) ? "bad" : ""}>${count(pool.runners)}${pool.draining > 0 && ` (${pool.draining} draining)`}${pool.silent > 0 && ` + ${pool.silent} silent`}</span>`,
  },
  { title: "Slots in use", key: "slots", cell: (/** @type {any} */ pool) => html`<span class="slots">${count(pool.running)} of ${count(pool.slots)}<${Bar} part=${pool.slots ? pool.running / pool.slots : 0} kind=${saturationOf(pool)} /></span>` },
  { title: "Waiting", key: "waiting", align: RIGHT, cell: (/** @type {any} */ pool) => html`<span class=${isUnserved(pool) ? "bad" : ""}>${count(pool.pending)}</span>` },
  { title: "Oldest wait", key: "oldest", align: RIGHT, cell: (/** @type {any} */ pool) => (pool.pending ? duration(pool.oldest_wait_seconds) : "–") },
  { title: "Ended per minute", key: "ended", align: RIGHT, cell: (/** @type {any} */ pool) => count(pool.ended_a_minute) },
  { title: "Hosts", key: "hosts", align: RIGHT, cell: (/** @type {any} */ pool) => count(pool.hosts) },
];

/** @param {"runner" | "builder"} kind @param {(worker: any) => void} act */
function columns(kind, act) {
  const load = [
    { title: "Pool", key: "pool", cell: (/** @type {any} */ worker) => worker.pool },
    { title: "Running", key: "running", align: RIGHT, cell: (/** @type {any} */ worker) => `${count(worker.running)} of ${count(worker.slots)}` },
    { title: "Ended per minute", key: "ended", align: RIGHT, cell: (/** @type {any} */ worker) => count(worker.ended_a_minute) },
  ];
  return [
    { title: kind === "runner" ? "Runner" : "Builder", key: "id", cell: (/** @type {any} */ worker) => html`<code title="process ${worker.pid} on ${worker.host_name}">${worker.id}</code>` },
    { title: "State", key: "state", cell: (/** @type {any} */ worker) => html`<${Pill} status=${worker.state} />` },
    ...(kind === "runner" ? load : [load[1]]),
    { title: "Version", key: "version", cell: (/** @type {any} */ worker) => worker.version },
    { title: "Isolation", key: "isolation", cell: isolationOf },
    { title: "Heartbeat", key: "heartbeat", cell: (/** @type {any} */ worker) => html`<span class=${worker.state === "silent" ? "bad" : ""}>${heartbeat(worker.silent_seconds)}</span>` },
    { title: "Since", key: "since", cell: (/** @type {any} */ worker) => html`<${Ago} at=${worker.started_at} />` },
    ...(can("operator") ? [{
      title: "", key: "actions", align: RIGHT,
      cell: (/** @type {any} */ worker) => ACTIONS[worker.state] && html`<${Button} kind="plain" label="${ACTIONS[worker.state]} ${worker.id}" onClick=${() => act(worker)}>${ACTIONS[worker.state]}<//>`,
    }] : []),
  ];
}

/** @param {number} seconds */
const heartbeat = (seconds) => (seconds < 60 ? `${Math.round(seconds)} s ago` : `${duration(seconds)} ago`);

/** @param {any} worker */
function isolationOf(worker) {
  const bounds = [worker.bounds_tasks && "processes and threads", worker.bounds_memory && "memory"].filter(Boolean);
  const limits = bounds.length ? `The kernel limits ${bounds.join(" and ")}.` : "The kernel limits neither threads nor memory.";
  return html`<span title=${limits}>${worker.isolation} <span class="quiet">${ISOLATION[worker.isolation] ?? ""}</span></span>`;
}

const MEGABYTE = 1_000_000;
const HOSTS = [
  {
    title: "Deployment", key: "deployment",
    cell: (/** @type {any} */ host) => html`<a href=${href(["deployments", host.deployment_id])}>${host.deployment}</a> <span class="quiet">v${host.revision_number}</span>`,
  },
  { title: "State", key: "state", cell: (/** @type {any} */ host) => html`<span class=${host.is_healthy ? "pill good" : "pill bad"}>${host.is_healthy ? "healthy" : "not responding"}</span>` },
  { title: "Runs", key: "runs", align: RIGHT, cell: (/** @type {any} */ host) => html`<a href=${href(["d", host.deployment, "runs"], { status: "running" })}>${count(host.runs)}</a>` },
  { title: "Memory", key: "memory", cell: memoryOf },
  { title: "Age", key: "age", align: RIGHT, cell: (/** @type {any} */ host) => duration(Math.round(host.age_seconds)) },
  { title: "Idle", key: "idle", align: RIGHT, cell: (/** @type {any} */ host) => (host.runs ? "–" : duration(Math.round(host.idle_seconds))) },
  { title: "Process", key: "pid", align: RIGHT, cell: (/** @type {any} */ host) => html`<code>${host.pid}</code>` },
  { title: "Runner", key: "worker", cell: (/** @type {any} */ host) => html`<code>${host.worker}</code>` },
];

/** @param {any} host */
function memoryOf(host) {
  if (!host.memory_limit_mb) return bytes(host.memory_mb * MEGABYTE);
  const part = host.memory_mb / host.memory_limit_mb;
  return html`<span class="measure"><meter min="0" max="1" high="0.8" optimum="0" value=${part} aria-label="Memory in use"></meter>
    ${bytes(host.memory_mb * MEGABYTE)} <span class="quiet">of ${bytes(host.memory_limit_mb * MEGABYTE)}</span></span>`;
}

/** @param {any} worker @param {() => void} reload */
async function askAndDrain(worker, reload) {
  const text = worker.kind === "runner"
    ? "The runner claims no new runs and finishes those that it has. Other runners of the pool claim the runs that wait."
    : "The builder claims no new builds and finishes those that it has.";
  const more = html`<p>${text}</p><p>It stays drained until it is resumed or its process ends.</p>`;
  if (!(await ask({ title: `Drain ${worker.id}?`, text: more, action: "Drain", kind: "danger" }))) return;
  await control("POST", `/v2/workers/${encodeURIComponent(worker.id)}/drain`);
  notify(`${worker.id} is draining.`);
  reload();
}

/** @param {any} worker @param {() => void} reload */
async function resume(worker, reload) {
  await control("POST", `/v2/workers/${encodeURIComponent(worker.id)}/resume`);
  notify(`${worker.id} accepts new work.`);
  reload();
}
