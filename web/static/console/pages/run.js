// A run: timeline, events, input and output, attempts, log, webhooks, tokens, cost and feedback.

import { control, deployment } from "../core/api.js";
import { canRunAt, useDeployment } from "../core/deployments.js";
import { html, useEffect, useMemo, useState } from "../core/dom.js";
import { between, count, duration, money, plain, runName, short } from "../core/format.js";
import { useAssistants, useDocumentTitle, useTitles } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { EventLog, createLog } from "../parts/event_log.js";
import { CancelRun, RetryRun } from "../parts/run_actions.js";
import { RunFacts } from "../parts/run_facts.js";
import { RunTimeline } from "../parts/run_timeline.js";
import { hasFailed, isLive, reasonOf } from "../parts/runs.js";
import { StateTree } from "../parts/state_tree.js";
import { Ago, Button, Empty, ErrorBox, Json, Loading, LogView, LongText, Page, Pill, RunStatus, Table, Tabs, notify } from "../parts/index.js";

/** @typedef {Record<string, any>} Run */

const LOOK_AGAIN_MS = 1_500;
const LOG_LINES = 1_000;
const FROM_START = "-";

/** @param {Record<string, string>} params */
export const title = (params) => `Run ${short(params.run)}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function RunPage({ params, query }) {
  const { name, thread, run: id } = params;
  const [isOver, setOver] = useState(false);
  const { data: run, error, reload } = useResource((signal) => read(name, thread, id, signal), [name, thread, id], { every: isOver ? undefined : LOOK_AGAIN_MS });
  useEffect(() => { if (run) setOver(!isLive(run) && !run.waits_for); }, [run]);
  const assistants = useAssistants(name);
  const threadName = useTitles(name, [thread]).get(thread) ?? `Thread ${short(thread)}`;
  const heading = run && runName(run, assistants.get(run.assistant_id));
  useDocumentTitle(heading && `${heading} · ${threadName}`);
  const crumbs = [{ label: name }, { label: "Runs", href: href(["d", name, "runs"]) }, { label: threadName, href: href(["d", name, "threads", thread]) }];
  if (!run) return html`<${Page} title=${title(params)} crumbs=${crumbs}>${error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`}<//>`;
  const tab = query.tab || "timeline";
  const tabs = [
    { id: "timeline", label: "Timeline" }, { id: "events", label: "Events" }, { id: "values", label: "Input and output" },
    { id: "attempts", label: run.attempts?.length ? `Attempts (${attemptsOf(run).length})` : "Attempts" },
    { id: "logs", label: "Log" }, ...(run.kwargs?.webhook ? [{ id: "webhooks", label: "Webhook" }] : []), { id: "record", label: "Record" },
  ];
  const again = () => {
    setOver(false);
    reload();
  };
  const actions = canRunAt(name) && html`<${CancelRun} name=${name} run=${run} onDone=${again} /><${RetryRun} name=${name} run=${run} onDone=${again} />`;
  return html`
    <${Page} title=${heading} crumbs=${crumbs} status=${html`<${RunStatus} run=${run} />${isLive(run) && html` <span class="live" role="status">live</span>`}`} actions=${actions}>
      <${RunFacts} name=${name} run=${run} threadName=${threadName} assistant=${assistants.get(run.assistant_id)} />
      <${Failure} run=${run} />
      <${Usage} run=${run} />
      <${Feedback} name=${name} run=${run} />
      <${Tabs} label="Parts of the run" tabs=${tabs} current=${tab} onChange=${(/** @type {string} */ to) => setQuery({ tab: to === "timeline" ? null : to })}>
        ${tab === "timeline" && html`<${RunTimeline} key=${id} name=${name} run=${run} />`}
        ${tab === "events" && html`<${Events} key=${id} name=${name} run=${run} />`}
        ${tab === "values" && html`<${Values} name=${name} run=${run} />`}
        ${tab === "attempts" && html`<${Attempts} run=${run} />`}
        ${tab === "logs" && html`<${Logs} name=${name} run=${run} />`}
        ${tab === "webhooks" && html`<${Webhooks} name=${name} run=${run} />`}
        ${tab === "record" && html`<${Json} value=${run} collapsed=${2} />`}
      <//>
    <//>`;
}

/**
 * Return the run's record with its error. Only search results contain the error of a run.
 * @param {string} name @param {string} thread @param {string} id @param {AbortSignal} signal
 * @returns {Promise<Run>}
 */
async function read(name, thread, id, signal) {
  const api = deployment(name);
  const run = await api.call("GET", `/threads/${encodeURIComponent(thread)}/runs/${encodeURIComponent(id)}`, { signal });
  if (!hasFailed(run) || run.error !== undefined) return run;
  const failed = await api.call("POST", "/runs/search", { body: { thread_id: run.thread_id, status: [run.status], limit: 1000 }, signal });
  const found = failed.find((/** @type {Run} */ each) => each.run_id === run.run_id);
  return { ...run, ...found };
}

/** @param {{run: Run}} props */
function Failure({ run }) {
  const reason = reasonOf(run);
  if (!hasFailed(run) || !reason) return null;
  const text = run.error ? String(run.error.message ?? "") : reason;
  return html`
    <section class=${run.status === "interrupted" ? "failure calm" : "failure"} aria-label="End of the run">
      ${run.error && html`<strong>${plain(String(run.error.error).slice(0, 200))}</strong>`}
      <pre>${plain(text.slice(0, 20_000))}</pre>
      ${run.status === "error" && html`<button type="button" class="plain" onClick=${() => setQuery({ tab: "logs" })}>Show the traceback in the log</button>`}
    </section>`;
}

/** Tokens and cost, by model. @param {{run: Run}} props */
function Usage({ run }) {
  const models = Object.entries(run.usage ?? {});
  if (!models.length) return null;
  const columns = [
    { title: "Model", key: "model", cell: (/** @type {any} */ [model]) => plain(model.slice(0, 100)) },
    { title: "Input tokens", key: "input", align: "right", cell: (/** @type {any} */ [, each]) => count(each.input_tokens) },
    { title: "Output tokens", key: "output", align: "right", cell: (/** @type {any} */ [, each]) => count(each.output_tokens) },
    { title: "All tokens", key: "total", align: "right", cell: (/** @type {any} */ [, each]) => count(each.total_tokens) },
  ];
  return html`
    <section class="usage" aria-label="Tokens and cost">
      <${Table} label="Tokens by model" columns=${columns} rows=${models} rowKey=${(/** @type {any} */ [model]) => model} />
      <p>Cost <strong>${money(run.cost)}</strong>${run.cost == null && html` <span class="quiet">no price is set for these models</span>`}</p>
    </section>`;
}

/** What people said about the run. @param {{name: string, run: Run}} props */
function Feedback({ name, run }) {
  const path = `/threads/${run.thread_id}/runs/${run.run_id}/feedback`;
  const { data } = useResource((signal) => deployment(name).call("GET", path, { signal }), [name, run.run_id, run.status]);
  if (!data?.length) return null;
  const shown = (/** @type {any} */ value) => html`<${LongText} text=${typeof value === "string" ? value : JSON.stringify(value)} limit=${200} />`;
  const columns = [
    { title: "Feedback", key: "key", cell: (/** @type {any} */ each) => plain(each.key) },
    { title: "Score", key: "score", align: "right", cell: (/** @type {any} */ each) => (each.score === null ? null : String(Number(each.score.toFixed(4)))) },
    ...["value", "comment", "correction"].map((field) => ({ title: field[0].toUpperCase() + field.slice(1), key: field, cell: (/** @type {any} */ each) => each[field] !== null && html`<div class=${field}>${shown(each[field])}</div>` })),
    { title: "Source", key: "source", cell: (/** @type {any} */ each) => plain(each.source) },
    { title: "Time", key: "at", cell: (/** @type {any} */ each) => html`<${Ago} at=${each.updated_at} />` },
  ];
  return html`
    <section class="feedback" aria-label="Feedback"><h2>Feedback</h2>
      <${Table} label="Feedback" columns=${columns} rows=${data} rowKey=${(/** @type {any} */ each) => JSON.stringify([each.key, each.source])} />
    </section>`;
}

/** @param {{name: string, run: Run}} props */
function Events({ name, run }) {
  const live = isLive(run);
  const [wasLive] = useState(live);
  const path = `/threads/${run.thread_id}/runs/${run.run_id}/stream`;
  const log = useMemo(() => createLog((signal) => deployment(name).stream(path, { signal, lastEventId: FROM_START }), { isLive: wasLive }), [name, run.run_id]);
  useEffect(() => () => log.leave(), [log]);
  return html`<${EventLog} log=${log} isLive=${wasLive && live} />`;
}

/** @param {{name: string, run: Run}} props */
function Values({ name, run }) {
  const kwargs = run.kwargs ?? {};
  const input = kwargs.command ? { command: kwargs.command } : kwargs.input;
  return html`
    <div class="in-and-out">
      <section aria-label="Input"><h2>${kwargs.command ? "Command" : "Input"}</h2>
        ${input == null ? html`<p class="quiet">None: the run continued from the thread's state.</p>` : typeof input === "object" && !Array.isArray(input) ? html`<${StateTree} values=${input} />` : html`<${Json} value=${input} />`}
        ${Object.keys(kwargs.context ?? {}).length > 0 && html`<h2>Context</h2><${Json} value=${kwargs.context} />`}
      </section>
      <section aria-label="Output"><h2>Output</h2><${Output} name=${name} run=${run} /></section>
    </div>`;
}

/** The state of the run's last checkpoint. @param {{name: string, run: Run}} props */
function Output({ name, run }) {
  const live = isLive(run);
  const { data, error } = useResource(async (signal) => {
    const body = { limit: 1, metadata: { run_id: run.run_id } };
    return (await deployment(name).call("POST", `/threads/${run.thread_id}/history`, { body, signal }))[0] ?? null;
  }, [name, run.run_id, live], { every: live ? LOOK_AGAIN_MS : undefined });
  if (error && data === undefined) return html`<${ErrorBox} error=${error} />`;
  if (data === undefined) return html`<${Loading} />`;
  if (!data) return html`<p class="quiet">The run has written no checkpoint.</p>`;
  return html`${live && html`<p class="quiet">So far.</p>`}<${StateTree} values=${data.values} />`;
}

/** Return the lost attempts and the last one. The record has the start of the first attempt only. @param {Run} run @returns {any[]} */
function attemptsOf(run) {
  const lost = run.attempts ?? [];
  if (!run.started_at) return lost;
  const last = { attempt: (lost.at(-1)?.attempt ?? 0) + 1, worker: null, started_at: lost.length ? null : run.started_at, ended_at: run.ended_at, reason: run.status };
  return [...lost, last];
}

/** @param {{run: Run}} props */
function Attempts({ run }) {
  const columns = [
    { title: "Attempt", key: "attempt" },
    { title: "Runner", key: "worker", cell: (/** @type {any} */ each) => plain(String(each.worker ?? "–").slice(0, 100)) },
    { title: "Started", key: "started", cell: (/** @type {any} */ each) => html`<${Ago} at=${each.started_at} />` },
    { title: "Duration", key: "took", align: "right", cell: (/** @type {any} */ each) => duration(between(each.started_at, each.ended_at)) },
    { title: "End", key: "reason", cell: (/** @type {any} */ each) => plain(String(each.reason ?? "–").slice(0, 500)) },
  ];
  const rows = attemptsOf(run);
  if (!rows.length) return html`<${Empty} title="Not started yet" text="The first attempt starts when a runner claims the run." />`;
  return html`<${Table} label="Attempts" columns=${columns} rows=${rows} rowKey=${(/** @type {any} */ each) => String(each.attempt)} />`;
}

/** The lines that the run printed and logged. @param {{name: string, run: Run}} props */
function Logs({ name, run }) {
  const found = useDeployment({ name });
  const [text, setText] = useState("");
  const live = isLive(run);
  const { data, error } = useResource(async (signal) => {
    if (!found) return undefined;
    const body = { run_id: run.run_id, order: "desc", limit: LOG_LINES, ...(text && { query: text }) };
    return (await control("POST", `/v1/projects/${found.id}/deploy_logs`, { body, signal })).logs.reverse();
  }, [found?.id, run.run_id, run.status, text], { every: live ? LOOK_AGAIN_MS : undefined });
  return html`
    <div class="log-tools"><label>Lines with <input type="search" value=${text} onInput=${(/** @type {Event} */ event) => setText(/** @type {HTMLInputElement} */ (event.currentTarget).value)} /></label></div>
    ${error && html`<${ErrorBox} error=${error} />`}
    ${data ? html`<${LogView} lines=${data} follow=${live} label="Log of the run" empty="This run has logged nothing." />` : !error && html`<${Loading} />`}`;
}

/** @param {{name: string, run: Run}} props */
function Webhooks({ name, run }) {
  const api = deployment(name);
  const { data, error, reload } = useResource((signal) => api.call("POST", "/webhooks/search", { body: { run_id: run.run_id, limit: 50 }, signal }), [name, run.run_id], { every: LOOK_AGAIN_MS * 2 });
  if (error && !data) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  const again = async (/** @type {any} */ each) => {
    await api.call("POST", `/webhooks/${each.delivery_id}/retry`);
    notify("The webhook is sent again");
    reload();
  };
  const columns = [
    { title: "URL", key: "url", cell: (/** @type {any} */ each) => html`<code>${plain(String(each.url).slice(0, 200))}</code>` },
    { title: "Status", key: "status", cell: (/** @type {any} */ each) => html`<${Pill} status=${each.status} />` },
    { title: "Response", key: "answer", cell: (/** @type {any} */ each) => each.response_status ?? plain(String(each.error ?? "–").slice(0, 200)) },
    { title: "Attempts", key: "attempts", align: "right" },
    { title: "Next", key: "next", cell: (/** @type {any} */ each) => html`<${Ago} at=${each.delivered_at ?? each.next_attempt_at} />` },
    ...(can("run") ? [{ title: "", key: "again", cell: (/** @type {any} */ each) => html`<${Button} kind="plain" onClick=${() => again(each)}>Send again<//>` }] : []),
  ];
  if (!data.length) return html`<${Empty} title="Not called yet" text="The URL is called when the run has ended. Deliveries are kept for some days." />`;
  return html`<${Table} label="Deliveries" columns=${columns} rows=${data} rowKey="delivery_id" />`;
}
