// A case of a replay: the past run and its replay side by side.

import { control, deployment } from "../core/api.js";
import { useDeploymentResource } from "../core/deployments.js";
import { html } from "../core/dom.js";
import { plain } from "../core/format.js";
import { useDocumentTitle } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, setQuery } from "../core/router.js";
import { aligned } from "../parts/alignment.js";
import { Message, isMessages, textOf } from "../parts/message.js";
import { MEANINGS, changeInWords, figureInWords, isInProgress, replayName, statusOfCase } from "../parts/replays.js";
import { StateTree } from "../parts/state_tree.js";
import { Empty, ErrorBox, Loading, LongText, Page, Pill, Table, Tabs } from "../parts/index.js";

/** @typedef {import("../parts/replays.js").Replay} Replay */
/** @typedef {import("../parts/replays.js").Case} Case */

const FIRST = 1; // position of the first case
const LOOK_AGAIN_MS = 2_000;
const SHOWN = 400; // characters of a value before it is expanded
const RIGHT = /** @type {const} */ ("right");
const GONE = 404;

/** @param {Record<string, string>} params */
export const title = (params) => `Case ${params.position}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function ReplayCasePage({ params: { name, replay: id, position }, query }) {
  const found = useDeploymentResource({ name });
  const path = found.data && `/v2/deployments/${found.data.id}/replays/${encodeURIComponent(id)}`;
  const number = Number(position);
  const { data, error } = useResource(async (signal) => (path ? read(path, number, signal) : undefined), [path, number], { every: LOOK_AGAIN_MS });
  useDocumentTitle(data && `Case ${position} · ${replayName(data.replay)}`);
  const crumbs = [{ label: name }, { label: "Replays", href: href(["d", name, "replays"]) }, { label: data ? replayName(data.replay) : "Replay", href: href(["d", name, "replays", id]) }];
  const body = () => {
    if (found.error ?? error) return html`<${ErrorBox} error=${found.error ?? error} />`;
    if (!found.loading && !found.data) return html`<${Empty} title="There is no such deployment" text=${name} />`;
    if (!data) return html`<${Loading} />`;
    if (!data.one) return html`<${Empty} title="There is no such case" text=${data.replay.counts.total ? `The replay has ${data.replay.counts.total} cases.` : "The replay has no cases."} action=${html`<a href=${href(["d", name, "replays", id])}>All cases</a>`} />`;
    return html`<${OneCase} name=${name} replay=${data.replay} one=${data.one} tab=${query.tab ?? "differences"} />`;
  };
  const step = (/** @type {number} */ to, /** @type {string} */ label) => html`<a class="as-button" href=${href(["d", name, "replays", id, to], query)}>${label}</a>`;
  const actions = data && html`${data.hasPrevious && step(number - 1, "Previous case")}${data.hasNext && step(number + 1, "Next case")}`;
  return html`<${Page} title=${`Case ${position}`} crumbs=${crumbs} actions=${actions} status=${data?.one && html`<${Pill} status=${statusOfCase(data.one)} title=${MEANINGS[data.one.outcome]} />`}>${body()}<//>`;
}

/**
 * The replay and one of its cases; the case is undefined while no run is selected for its position.
 * @param {string} path @param {number} position @param {AbortSignal} signal
 */
async function read(path, position, signal) {
  const replay = await control("GET", path, { signal });
  const isSelected = position >= FIRST && position <= replay.counts.total;
  const one = isSelected ? await control("GET", `${path}/cases/${position}`, { signal }) : undefined;
  return { replay, one, hasPrevious: position > FIRST, hasNext: position - FIRST + 1 < replay.counts.total };
}

/** @param {{name: string, replay: Replay, one: Case, tab: string}} props */
function OneCase({ name, replay, one, tab }) {
  const { comparison, outcome, reason } = one;
  const links = html`
    <p class="facts">
      <a href=${href(["d", name, "runs", one.thread_id, one.run_id])}>Original run</a>
      <a href=${href(["d", name, "threads", one.thread_id])}>Original thread</a>
      ${replay.bench && one.case_run_id && html`<a href=${href(["d", replay.bench, "runs", one.case_thread_id, one.case_run_id])}>Run of the case</a>`}
      ${replay.bench && one.case_thread_id && html`<a href=${href(["d", replay.bench, "threads", one.case_thread_id])}>Thread of the case</a>`}
    </p>`;
  if (!comparison) {
    return html`${links}${outcome === "skipped" ? html`<${Empty} title="This case was not executed" text=${plain(reason ?? "")} />`
      : outcome ? html`<${Empty} title="This case has no comparison" text=${plain(reason ?? MEANINGS[outcome] ?? "")} />`
        : html`<${Empty} title=${one.case_run_id ? "This case is running" : "This case waits"} text=${isInProgress(replay) ? "The comparison appears here when it has ended." : "The replay ended before it was executed."} />`}`;
  }
  const tabs = [
    { id: "differences", label: `Differences (${comparison.differences})` }, { id: "messages", label: "Messages" }, { id: "values", label: "Final values" },
    { id: "steps", label: `Steps (${comparison.steps.original.length} → ${comparison.steps.replay.length})` },
  ];
  const hasMoreTabs = tab === "messages" || tab === "values";
  return html`
    ${links}
    ${reason && html`<section class="failure" aria-label="Reason"><pre>${plain(reason.slice(0, 20_000))}</pre></section>`}
    <${Report} report=${comparison.report ?? {}} models=${replay.models} />
    <${Figures} comparison=${comparison} feedback=${one.feedback ?? {}} />
    <${Tabs} label="Both sides" tabs=${tabs} current=${tabs.some(({ id }) => id === tab) ? tab : "differences"} onChange=${(/** @type {string} */ to) => setQuery({ tab: to === "differences" ? null : to })}>
      ${tab === "steps" ? html`<${Steps} steps=${comparison.steps} />`
        : hasMoreTabs ? html`<${FinalValues} name=${name} bench=${replay.bench} one=${one} areMessages=${tab === "messages"} />`
          : html`<${Differences} comparison=${comparison} />`}
    <//>`;
}

/** The calls of tools, models and the network that were not replayed as recorded. @param {{report: Record<string, any>, models: string}} props */
function Report({ report, models }) {
  const { unrecorded = [], live = [], network = [], models_recorded: recorded = 0, models_live: called = 0 } = report;
  if (!unrecorded.length && !live.length && !network.length && models !== "recorded") return null;
  return html`
    <section class="replay-report" aria-label="Report">
      ${unrecorded.length > 0 && html`<p>These tool calls are not recorded, so they were not executed:</p>
        <ul class="plain-list">${unrecorded.map((/** @type {any} */ call, /** @type {number} */ at) => html`<li key=${at}><code>${plain(String(call.tool))}</code> <${LongText} text=${typeof call.args === "string" ? call.args : JSON.stringify(call.args)} limit=${SHOWN} /></li>`)}</ul>`}
      ${live.length > 0 && html`<p>Executed tools: ${live.map((/** @type {string} */ tool) => html`<code key=${tool}>${plain(tool)}</code> `)}</p>`}
      ${network.length > 0 && html`<p>The graph tried to use the network: ${network.map((/** @type {string} */ address) => html`<code key=${address}>${plain(address)}</code> `)}</p>`}
      ${models === "recorded" && html`<p>Model calls: ${recorded} answered as recorded, ${called} made.</p>`}
    </section>`;
}

/** @param {{comparison: Record<string, any>, feedback: Record<string, number | null>}} props `feedback` on the past run */
function Figures({ comparison, feedback }) {
  const { status, scores } = comparison;
  const names = [...new Set([...Object.keys(scores?.original ?? {}), ...Object.keys(scores?.replay ?? {})])].sort();
  const rows = [
    { label: "Status", original: html`<${Pill} status=${status.original} />`, replay: html`<${Pill} status=${status.replay} />`, change: "" },
    ...[["tokens", "Tokens"], ["cost", "Cost"], ["duration_seconds", "Duration"]].map(([metric, label]) => row(metric, label, comparison[metric])),
    ...Object.entries(feedback).map(([key, score]) => row("score", `Feedback ${plain(key)}`, { original: score })),
    ...names.map((score) => row("score", `Score ${plain(score)}`, { original: scores.original?.[score], replay: scores.replay?.[score] })),
  ];
  const columns = [
    { title: "Figure", key: "label", primary: true }, { title: "Original", key: "original", align: RIGHT }, { title: "Replay", key: "replay", align: RIGHT }, { title: "Change", key: "change", align: RIGHT },
  ];
  return html`<div class="replay-figures"><${Table} label="Figures of both sides" columns=${columns} rows=${rows} rowKey="label" /></div>`;
}

/** @param {string} metric @param {string} label @param {{original?: number | null, replay?: number | null} | undefined} sides */
const row = (metric, label, { original, replay } = {}) => ({ label, original: figureInWords(metric, original), replay: figureInWords(metric, replay), change: changeInWords(metric, original, replay) });

/** The differences of the final values, as the service found them. @param {{comparison: Record<string, any>}} props */
function Differences({ comparison: { values, differences } }) {
  if (!differences) return html`<p class="quiet">The final values are equal, except for ids and times.</p>`;
  return html`
    <div class="table-box" role="region" aria-label="Differences" tabindex="0">
      <table class="side-by-side">
        <thead><tr><th scope="col">Field</th><th scope="col">Original</th><th scope="col">Replay</th></tr></thead>
        <tbody>${values.map((/** @type {any} */ one, /** @type {number} */ at) => html`<${Difference} key=${at} one=${one} />`)}</tbody>
      </table>
    </div>
    ${differences > values.length && html`<p class="quiet">These are the first ${values.length} of ${differences} differences.</p>`}`;
}

/** A side that does not have the value lacks the key. @param {{one: {path: string, original?: any, replay?: any}}} props */
function Difference({ one }) {
  const kind = !("original" in one) ? "added" : !("replay" in one) ? "removed" : "changed";
  const shown = (/** @type {any} */ value) => html`<${LongText} text=${typeof value === "string" ? value : JSON.stringify(value, null, 1)} limit=${SHOWN} />`;
  return html`
    <tr class="difference ${kind}">
      <th scope="row"><code>${plain(one.path) || "all"}</code> <span class="quiet">${kind}</span></th>
      <td class="was">${"original" in one && shown(one.original)}</td>
      <td class="is">${"replay" in one && shown(one.replay)}</td>
    </tr>`;
}

/** The nodes of both runs. @param {{steps: {original: string[], replay: string[]}}} props */
function Steps({ steps: { original, replay } }) {
  if (!original.length && !replay.length) return html`<p class="quiet">Neither run has steps that are still stored.</p>`;
  const rows = aligned(original, replay, (step) => step);
  const side = (/** @type {string | undefined} */ step) => html`<span role="cell" class="half">${step !== undefined && html`<code>${plain(step)}</code>`}</span>`;
  return html`
    <div class="both-sides" role="table" aria-label="Steps of both sides">
      <${Heads} />
      ${rows.map(({ original: was, replay: is, isSame }, at) => html`<div key=${at} role="row" class=${`pair of-steps ${isSame ? "" : "different"}`}>${side(was)}${side(is)}</div>`)}
    </div>`;
}

const Heads = () => html`<div role="row" class="pair heads"><span role="columnheader">Original</span><span role="columnheader">Replay</span></div>`;

/**
 * The final values of both runs, as far as they are still stored.
 * @param {{name: string, bench: string | null, one: Case, areMessages: boolean}} props
 */
function FinalValues({ name, bench, one, areMessages }) {
  const { data, error, reload } = useResource(async (signal) => {
    const [original, replay] = await Promise.all([valuesOf(name, one.thread_id, one.run_id, signal), bench && one.case_run_id ? valuesOf(bench, one.case_thread_id, one.case_run_id, signal) : null]);
    return { original, replay };
  }, [name, bench, one.run_id, one.case_run_id]);
  if (error && !data) return html`<${ErrorBox} error=${error} retry=${reload} />`;
  if (!data) return html`<${Loading} />`;
  return areMessages ? html`<${MessagePairs} original=${data.original} replay=${data.replay} />` : html`
    <div class="in-and-out">
      <section aria-label="Original"><h2>Original</h2><${Stored} values=${data.original} /></section>
      <section aria-label="Replay"><h2>Replay</h2><${Stored} values=${data.replay} /></section>
    </div>`;
}

/** @param {{values: any}} props */
const Stored = ({ values }) => (values === null ? html`<p class="quiet">They are no longer stored.</p>` : html`<${StateTree} values=${values} />`);

/**
 * The values of a run's last checkpoint; null if it is no longer stored.
 * @param {string} name @param {string} thread @param {string} run @param {AbortSignal} signal
 */
async function valuesOf(name, thread, run, signal) {
  try {
    const body = { limit: 1, metadata: { run_id: run } };
    return (await deployment(name).call("POST", `/threads/${encodeURIComponent(thread)}/history`, { body, signal }))[0]?.values ?? null;
  } catch (error) {
    if (/** @type {any} */ (error).status === GONE) return null;
    throw error;
  }
}

/** @param {{original: any, replay: any}} props */
function MessagePairs({ original, replay }) {
  const [was, is] = [messagesOf(original), messagesOf(replay)];
  if (!was.length && !is.length) return html`<p class="quiet">${original === null && replay === null ? "The final values are no longer stored." : "The final values hold no messages: see Final values."}</p>`;
  const side = (/** @type {any} */ message) => html`<div role="cell" class="half">${message && html`<${Message} message=${message} />`}</div>`;
  return html`
    <div class="both-sides" role="table" aria-label="Messages of both sides">
      <${Heads} />
      ${aligned(was, is, keyOf).map((pair, at) => html`<div key=${at} role="row" class=${`pair ${pair.isSame ? "" : "different"}`}>${side(pair.original)}${side(pair.replay)}</div>`)}
    </div>`;
}

/** The first list of messages among the values. @param {any} values @returns {any[]} */
const messagesOf = (values) => Object.values(values ?? {}).find(isMessages) ?? [];

/** What makes two messages equal: ids differ in every run. @param {any} message */
const keyOf = (message) => JSON.stringify([message.type, textOf(message.content), (message.tool_calls ?? []).map((/** @type {any} */ call) => [call?.name, call?.args])]);
