// The crons of a deployment: schedule in words, next times and last runs. Crons can be created, changed, paused and deleted.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { assistantName, runName, short, text } from "../core/format.js";
import { useAssistants, useTitles } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { CronForm } from "../parts/cron_form.js";
import { Ago, Button, Empty, ErrorBox, Id, Json, Loading, Page, Pager, Pill, RunStatus, Select, Table, ask, notify } from "../parts/index.js";
import { inWords } from "../parts/schedule.js";

const PAGE = 20;
const LAST_RUNS = 10;
const LOOK_AGAIN_MS = 10_000;
const RIGHT = /** @type {const} */ ("right");

export const title = (/** @type {any} */ params) => `Crons · ${params.name}`;

/** @param {{params: {name: string}, query: Record<string, string>}} props */
export default function CronsPage({ params: { name }, query }) {
  const offset = Number(query.offset ?? 0);
  const body = { limit: PAGE, offset, ...(query.assistant && { assistant_id: query.assistant }) };
  const at = deployment(name);
  const found = useResource((signal) => at.call("POST", "/runs/crons/search", { body, signal }), [name, JSON.stringify(body)], { every: LOOK_AGAIN_MS });
  const assistants = useAssistants(name);
  const [edited, setEdited] = useState(/** @type {{cron?: any} | null} */ (null));
  const make = can("run") && html`<${Button} kind="primary" onClick=${() => setEdited({})}>New cron<//>`;
  const titles = useTitles(name, (found.data ?? []).flatMap((/** @type {any} */ cron) => cron.thread_id ?? []));
  const choices = [{ value: "", label: "Any assistant" }, ...[...assistants.values()].map((one) => ({ value: one.assistant_id, label: assistantName(one) }))];
  const opened = found.data?.find((/** @type {any} */ cron) => cron.cron_id === query.cron);
  const empty = query.assistant
    ? html`<${Empty} title="No cron of this assistant" action=${html`<${Button} onClick=${() => setQuery({ assistant: null })}>Show all<//>`} />`
    : html`<${Empty} title="No crons yet" text="A cron creates a run at each time of its schedule, on a new thread or always on the same one." action=${make} />`;
  return html`
    <${Page} title="Crons" crumbs=${[{ label: name }]} actions=${make}>
      <div class="filters"><${Select} label="Assistant" value=${query.assistant ?? ""} options=${choices} onChange=${(/** @type {string} */ assistant) => setQuery({ assistant, offset: null })} /></div>
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      ${!found.data && !found.error && html`<${Loading} />`}
      ${found.data && html`
        <${Table} label="Crons" rows=${found.data} rowKey="cron_id" columns=${columns({ name, assistants, titles, edit: setEdited, reload: found.reload })} empty=${empty}
          selected=${(/** @type {any} */ cron) => cron === opened} onRow=${(/** @type {any} */ cron) => setQuery({ cron: cron === opened ? null : cron.cron_id })} />
        <${Pager} offset=${offset} limit=${PAGE} count=${found.data.length} onChange=${(/** @type {number} */ to) => setQuery({ offset: to || null, cron: null })} />`}
      ${opened && html`<${Cron} key=${opened.cron_id} name=${name} cron=${opened} assistants=${assistants} />`}
      ${edited && html`<${CronForm} name=${name} cron=${edited.cron} assistants=${[...assistants.values()]} onClose=${() => setEdited(null)} onDone=${found.reload} />`}
    <//>`;
}

/** @param {{name: string, assistants: Map<string, import("../core/names.js").Assistant>, titles: Map<string, string>, edit: (edited: any) => void, reload: () => void}} page */
const columns = ({ name, assistants, titles, edit, reload }) => [
  { title: "Schedule", key: "schedule", cell: (/** @type {any} */ cron) => html`<${Schedule} cron=${cron} />` },
  { title: "Assistant", key: "assistant", cell: (/** @type {any} */ cron) => html`<a href=${href(["d", name, "assistants", cron.assistant_id])} title=${cron.assistant_id}>${assistants.has(cron.assistant_id) ? assistantName(assistants.get(cron.assistant_id)) : short(cron.assistant_id)}</a>` },
  { title: "Thread", key: "thread", cell: (/** @type {any} */ cron) => threadOf(name, cron, titles) },
  { title: "State", key: "state", cell: (/** @type {any} */ cron) => html`<${Pill} status=${stateOf(cron)} />` },
  { title: "Next", key: "next", cell: (/** @type {any} */ cron) => (stateOf(cron) === "enabled" ? html`<${Ago} at=${cron.next_run_date} />` : html`<span class="quiet">–</span>`) },
  { title: "Changed", key: "changed", cell: (/** @type {any} */ cron) => html`<${Ago} at=${cron.updated_at} />` },
  {
    title: "", key: "actions", align: RIGHT,
    cell: (/** @type {any} */ cron) => html`<span class="row-actions">
      <${Button} kind="plain" label="Show ${cron.schedule}" onClick=${() => setQuery({ cron: cron.cron_id })}>Show<//>
      ${can("run") && html`
        <${Button} kind="plain" label="${cron.enabled ? "Pause" : "Continue"} ${cron.schedule}" onClick=${() => toggle(name, cron, reload)}>${cron.enabled ? "Pause" : "Continue"}<//>
        <${Button} kind="plain" label="Change ${cron.schedule}" onClick=${() => edit({ cron })}>Change<//>
        <${Button} kind="plain" label="Delete ${cron.schedule}" onClick=${() => remove(name, cron, reload)}>Delete<//>`}</span>`,
  },
];

/** @param {{cron: any}} props */
function Schedule({ cron }) {
  const words = inWords(cron.schedule);
  return html`<span class="stacked">${words && html`<b>${words}</b>`}<span><code>${text(cron.schedule, 60)}</code> <span class="quiet">${cron.timezone ?? "UTC"}</span></span></span>`;
}

/** @param {string} name @param {any} cron @param {Map<string, string>} titles */
function threadOf(name, cron, titles) {
  if (!cron.thread_id) return html`<span class="quiet">a new thread each time</span>`;
  return html`<a class="name" title=${cron.thread_id} href=${href(["d", name, "threads", cron.thread_id])}>${titles.get(cron.thread_id) ?? short(cron.thread_id)}</a>`;
}

/** @param {any} cron */
function stateOf(cron) {
  if (cron.end_time && new Date(cron.end_time).getTime() <= Date.now()) return "ended";
  return cron.enabled ? "enabled" : "paused";
}

/** @param {string} name @param {any} cron */
const pathOf = (name, cron) => `/runs/crons/${cron.cron_id}`;

/** @param {string} name @param {any} cron @param {() => void} reload */
async function toggle(name, cron, reload) {
  await deployment(name).call("PATCH", pathOf(name, cron), { body: { enabled: !cron.enabled } });
  notify(cron.enabled ? "The cron is paused. It creates no runs until it continues." : "The cron continues.");
  reload();
}

/** @param {string} name @param {any} cron @param {() => void} reload */
async function remove(name, cron, reload) {
  const words = inWords(cron.schedule) ?? cron.schedule;
  if (!(await ask({ title: "Delete this cron?", text: html`<p><b>${words}</b></p><p>The runs that it created are kept.</p>`, action: "Delete", kind: "danger" }))) return;
  await deployment(name).call("DELETE", pathOf(name, cron));
  notify("The cron was deleted.");
  reload();
}

/** @param {{name: string, cron: any, assistants: Map<string, import("../core/names.js").Assistant>}} props */
function Cron({ name, cron, assistants }) {
  return html`
    <section aria-label="Cron">
      <h2>${inWords(cron.schedule) ?? html`<code>${text(cron.schedule, 100)}</code>`} <${Id} value=${cron.cron_id} /></h2>
      <div class="columns">
        <div><h3>Next times</h3><${Firings} name=${name} cron=${cron} /></div>
        <div><h3>Last runs</h3><${LastRuns} name=${name} cron=${cron} assistants=${assistants} /></div>
      </div>
      <h3>Input and options of its runs</h3>
      <${Json} value=${cron.payload} collapsed=${2} label="Payload" />
    </section>`;
}

/** @param {{name: string, cron: any}} props */
function Firings({ name, cron }) {
  const load = (/** @type {AbortSignal} */ signal) => deployment(name).call("GET", `${pathOf(name, cron)}/firings`, { query: { count: 5 }, signal });
  const found = useResource(load, [name, cron.cron_id, cron.schedule, cron.timezone, cron.end_time, cron.next_run_date, cron.enabled]);
  if (found.error) return html`<${ErrorBox} error=${found.error} retry=${found.reload} />`;
  if (!found.data) return html`<${Loading} />`;
  if (!found.data.firings.length) return html`<p class="quiet">${cron.enabled ? "The schedule has no further times." : "The cron is paused."}</p>`;
  return html`
    <ol class="firings">${found.data.firings.map((/** @type {string} */ at) => html`<li key=${at}>${written(at, cron.timezone)} <span class="quiet"><${Ago} at=${at} /></span></li>`)}</ol>`;
}

/** A time in the time zone of the cron. @param {string} at @param {string | null} timezone */
function written(at, timezone) {
  /** @type {Intl.DateTimeFormatOptions} */
  const parts = { weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" };
  try {
    return new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: timezone ?? "UTC" }).format(new Date(at));
  } catch {
    return new Intl.DateTimeFormat("en-GB", { ...parts, timeZone: "UTC" }).format(new Date(at)); // the browser does not know this time zone
  }
}

/** @param {{name: string, cron: any, assistants: Map<string, import("../core/names.js").Assistant>}} props */
function LastRuns({ name, cron, assistants }) {
  const body = { metadata: { cron_id: cron.cron_id }, status: ["pending", "running", "success", "error", "timeout", "interrupted"], limit: LAST_RUNS };
  const found = useResource((signal) => deployment(name).call("POST", "/runs/search", { body, signal }), [name, cron.cron_id], { every: LOOK_AGAIN_MS });
  if (found.error) return html`<${ErrorBox} error=${found.error} retry=${found.reload} />`;
  if (!found.data) return html`<${Loading} />`;
  if (!found.data.length) return html`<p class="quiet">No runs are kept. The option “When a run has ended” decides whether runs are kept.</p>`;
  return html`<ul class="plain-list">${found.data.map((/** @type {any} */ run) => html`<li key=${run.run_id}>
    <${RunStatus} run=${run} /> <a title=${run.run_id} href=${href(["d", name, "runs", run.thread_id, run.run_id])}>${runName(run, assistants.get(run.assistant_id))}</a> <${Id} value=${run.run_id} /></li>`)}</ul>`;
}
