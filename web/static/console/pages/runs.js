// The runs of a deployment: the queue, and a list by status, assistant, time, error, feedback, metadata and thread. Runs can be cancelled and retried.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { assistantName, count, duration, isUuid, text } from "../core/format.js";
import { useAssistants } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { StartBulk } from "../parts/bulk.js";
import { ChoiceFilter, FilterBar, PageBar, TextFilter } from "../parts/filter_bar.js";
import { PERIODS, feedbackOf, filterOf, since } from "../parts/filters.js";
import { RunTable } from "../parts/run_table.js";
import { queueInWords } from "../parts/runs.js";
import { Button, Confirm, Empty, ErrorBox, Loading, Page, notify } from "../parts/index.js";

/** @typedef {Record<string, any>} Run */

const LIMIT = 50;
const LOOK_AGAIN_MS = 2_000;
/** @type {Record<string, string[]>} */
const GROUPS = {
  "": ["pending", "running", "success", "error", "timeout", "interrupted"],
  live: ["pending", "running"],
  failed: ["error", "timeout", "interrupted"],
  failures: ["error", "timeout"],
};
const STATUSES = [
  { value: "", label: "All" },
  { value: "live", label: "Waiting or running" },
  { value: "pending", label: "Waiting" },
  { value: "running", label: "Running" },
  { value: "failed", label: "Failed or cancelled" },
  { value: "failures", label: "Failed or timed out" },
  { value: "error", label: "Failed" },
  { value: "timeout", label: "Timed out" },
  { value: "interrupted", label: "Cancelled" },
  { value: "success", label: "Succeeded" },
];

/** @param {Record<string, string>} params */
export const title = (params) => `Runs · ${params.name}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function RunsPage({ params, query }) {
  const { name } = params;
  const { body, errors } = parseFilters(query);
  const offset = Number(query.offset) || 0;
  const isInvalid = Object.keys(errors).length > 0;
  const { data, error, loading, reload } = useResource(async (signal) => {
    if (isInvalid) return null;
    const answer = await deployment(name).respond("POST", "/runs/search", { body: { ...whereOf(), limit: LIMIT, offset }, signal });
    const total = answer.headers.get("x-pagination-total");
    return { runs: await answer.json(), total: total === null ? null : Number(total) };
  }, [name, JSON.stringify(query)], { every: LOOK_AGAIN_MS });
  const choices = [{ value: "", label: "Any assistant" }, ...[...useAssistants(name).values()].map((each) => ({ value: each.assistant_id, label: labelOf(each) }))];
  const whereOf = () => ({ ...body, since: since(query.since), ...(query.until && { until: query.until }) });
  const actions = html`<a href=${href(["d", name, "runs", "bulk"])}>Bulk operations</a>${can("run") && !isInvalid && html`<${StartBulk} name=${name} whereOf=${whereOf} />`}`;

  return html`
    <${Page} title="Runs" crumbs=${[{ label: name }]} actions=${actions}>
      <${Queue} name=${name} onChange=${reload} />
      <${FilterBar} label="Search runs">
        <${ChoiceFilter} label="Status" name="status" value=${query.status} options=${STATUSES} />
        <${ChoiceFilter} label="Assistant" name="assistant" value=${query.assistant} options=${choices} />
        <${ChoiceFilter} label="Time" name="since" value=${query.since} options=${periods(query.since)} />
        <${TextFilter} label="Error" name="error" value=${query.error} placeholder="ValueError" />
        <${TextFilter} label="Feedback" name="feedback" value=${query.feedback} placeholder="thumbs<0.5" />
        <${TextFilter} label="Metadata" name="metadata" value=${query.metadata} placeholder="user=ann, or JSON" error=${errors.metadata} wide />
        <${TextFilter} label="Thread" name="thread" value=${query.thread} placeholder="Id of a thread" error=${errors.thread} wide />
      <//>
      ${error && html`<${ErrorBox} error=${error} />`}
      ${!data && loading && html`<${Loading} />`}
      ${data && html`<${RunList} name=${name} page=${data} offset=${offset} reload=${reload} isFiltered=${Object.keys(query).length > 0} />`}
    <//>`;
}

/** The periods of the filter, and the time in the address if it is none of them. @param {string | undefined} chosen */
function periods(chosen) {
  const isTime = chosen && !PERIODS.some(({ value }) => value === chosen) && since(chosen);
  return isTime ? [...PERIODS, { value: chosen, label: `Since ${new Date(chosen).toLocaleString("en", { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" })}` }] : PERIODS;
}

/** @param {{name: string, graph_id: string}} assistant */
const labelOf = (assistant) => (assistant.name === assistant.graph_id || !assistant.name ? assistantName(assistant) : `${assistantName(assistant)} (${text(assistant.graph_id, 40)})`);

/**
 * The filters in the address, as the API takes them, and the errors of those that cannot be parsed.
 * @param {Record<string, string>} query
 */
function parseFilters(query) {
  /** @type {Record<string, string>} */
  const errors = {};
  /** @type {Record<string, any>} */
  const body = { status: GROUPS[query.status ?? ""] ?? [query.status] };
  if (query.assistant) body.assistant_id = query.assistant;
  if (query.error) body.error = query.error;
  if (query.feedback) body.feedback = feedbackOf(query.feedback);
  if (query.thread) body.thread_id = query.thread;
  if (query.thread && !isUuid(query.thread)) errors.thread = "A thread's id is a UUID";
  try {
    const metadata = filterOf(query.metadata);
    if (metadata) body.metadata = metadata;
  } catch (error) {
    errors.metadata = /** @type {Error} */ (error).message;
  }
  return { body, errors };
}

/** The numbers of running and waiting runs, and the reasons why runs wait. @param {{name: string, onChange: () => void}} props */
function Queue({ name, onChange }) {
  const [isAsking, setAsking] = useState(false);
  const { data: queue, reload } = useResource((signal) => deployment(name).call("GET", "/queue", { signal }), [name], { every: LOOK_AGAIN_MS });
  if (!queue) return html`<div class="run-queue" aria-hidden="true"><span class="figure"><strong>\u00a0</strong></span></div>`;
  const cancelAll = async () => {
    try {
      await deployment(name).call("POST", "/runs/cancel", { body: { status: "pending" } });
      notify("All waiting runs were cancelled");
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
    }
    setAsking(false);
    reload();
    onChange();
  };
  return html`
    <section class="run-queue" aria-label="Queue">
      <a class="figure" href=${href(["d", name, "runs"], { status: "running" })}><strong>${count(queue.running)}</strong> running${queue.max_concurrent_runs !== null && ` of ${count(queue.max_concurrent_runs)}`}</a>
      <a class="figure" href=${href(["d", name, "runs"], { status: "pending" })}><strong>${count(queue.pending)}</strong> waiting</a>
      <span class="figure quiet">pool ${queue.pool.name}: ${count(queue.pool.running)} of ${count(queue.pool.slots)} slots, ${count(queue.pool.runners)} ${queue.pool.runners === 1 ? "runner" : "runners"}</span>
      ${can("run") && queue.pending > 0 && html`<span class="end"><${Button} kind="danger" onClick=${() => setAsking(true)}>Cancel all waiting runs…<//></span>`}
      ${queue.waiting.length > 0 && html`
        <ul class="reasons">
          ${queue.waiting.map((/** @type {any} */ each) => html`<li key=${each.reason}><strong>${count(each.runs)}</strong> ${queueInWords({ ...each, position: null })}; the oldest waits for ${duration(each.oldest_wait_seconds)}</li>`)}
        </ul>`}
      <${Confirm} open=${isAsking} title=${`Cancel ${count(queue.pending)} waiting runs?`} action="Cancel them" kind="danger" onConfirm=${cancelAll} onClose=${() => setAsking(false)}>
        <p>They end without being executed. Running runs continue.</p>
      <//>
    </section>`;
}

/** @param {{name: string, page: {runs: Run[], total: number | null}, offset: number, reload: () => void, isFiltered: boolean}} props */
function RunList({ name, page: { runs, total }, offset, reload, isFiltered }) {
  const [chosen, setChosen] = useState(/** @type {Map<string, Run>} */ (new Map()));
  const [isAsking, setAsking] = useState(false);
  if (!runs.length) return html`<${NoRuns} name=${name} isFiltered=${isFiltered} />`;
  const choose = (/** @type {Run} */ run, /** @type {boolean} */ isChosen) => {
    const next = new Map(chosen);
    if (isChosen) next.set(run.run_id, run); else next.delete(run.run_id);
    setChosen(next);
  };
  const cancel = async () => {
    const failures = (await Promise.allSettled([...byThread(chosen.values())].map(([thread_id, run_ids]) =>
      deployment(name).call("POST", "/runs/cancel", { body: { thread_id, run_ids } })))).filter((each) => each.status === "rejected");
    notify(failures.length ? "Some of the runs had already ended" : "The runs are being cancelled");
    setChosen(new Map());
    setAsking(false);
    reload();
  };
  return html`
    <div class="list-actions">
      <span class="quiet" aria-live="polite">${total === null ? "" : `${count(total)} ${total === 1 ? "run" : "runs"}`}</span>
      ${chosen.size > 0 && html`<${Button} kind="danger" onClick=${() => setAsking(true)}>Cancel ${chosen.size}…<//>`}
    </div>
    <p class="quiet">A run that was created without a thread is deleted when it ends, unless it was created with on_completion "keep".</p>
    <${RunTable} name=${name} runs=${runs} reload=${reload} chosen=${can("run") ? new Set(chosen.keys()) : undefined} onChoose=${choose} />
    <${PageBar} offset=${offset} limit=${LIMIT} found=${runs.length} total=${total} />
    <${Confirm} open=${isAsking} title=${chosen.size === 1 ? "Cancel this run?" : `Cancel ${chosen.size} runs?`} action="Cancel" kind="danger" onConfirm=${cancel} onClose=${() => setAsking(false)}>
      <p>The runs stop where they are. Their checkpoints are kept.</p>
    <//>`;
}

/** @param {Iterable<Run>} runs @returns {Map<string, string[]>} */
function byThread(runs) {
  const threads = new Map();
  for (const { thread_id, run_id } of runs) threads.set(thread_id, [...(threads.get(thread_id) ?? []), run_id]);
  return threads;
}

/** @param {{name: string, isFiltered: boolean}} props */
function NoRuns({ name, isFiltered }) {
  if (isFiltered) {
    return html`<${Empty} title="No run matches" text="Remove a filter, or choose a longer period. A run without a thread is deleted when it ends."
      action=${html`<button type="button" onClick=${() => setQuery({ status: null, assistant: null, since: null, error: null, feedback: null, metadata: null, thread: null, offset: null })}>Show all runs</button>`} />`;
  }
  return html`<${Empty} title="No runs yet" text="A run is one execution of a graph. Start one in the playground, or with a client."
    action=${html`<a href=${href(["d", name, "playground"])}>Open the playground</a>`} />`;
}
