// Bulk operations of a deployment's runs: a list with their progress, and one operation with what was done to each run.

import { deployment } from "../core/api.js";
import { html } from "../core/dom.js";
import { count, plain, short } from "../core/format.js";
import { useDocumentTitle, useTitles } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, navigate } from "../core/router.js";
import { can } from "../core/session.js";
import { operationName, progressInWords } from "../parts/bulk.js";
import { Criteria } from "../parts/criteria.js";
import { ChoiceFilter, FilterBar, PageBar } from "../parts/filter_bar.js";
import { RunRevision } from "../parts/run_facts.js";
import { Ago, Button, Empty, ErrorBox, Id, Loading, Page, Pill, Table, ask, notify } from "../parts/index.js";

/** @typedef {Record<string, any>} Operation */

const PAGE = 50;
const LOOK_AGAIN_MS = 2_000;
const OUTCOMES = [{ value: "", label: "All" }, { value: "done", label: "Done" }, { value: "skipped", label: "Skipped" }, { value: "failed", label: "Failed" }];
const RIGHT = /** @type {const} */ ("right");

/** @param {Record<string, string>} params */
export const title = (params) => `Bulk operations · ${params.name}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function BulkOperationsPage({ params: { name, operation }, query }) {
  const offset = Number(query.offset) || 0;
  return operation
    ? html`<${OneOperation} key=${operation} name=${name} id=${operation} outcome=${query.outcome ?? ""} offset=${offset} />`
    : html`<${Operations} name=${name} offset=${offset} />`;
}

/** @param {{name: string, offset: number}} props */
function Operations({ name, offset }) {
  const { data, error, reload } = useResource((signal) => deployment(name).call("GET", "/runs/bulk", { query: { limit: PAGE, offset }, signal }), [name, offset], { every: LOOK_AGAIN_MS });
  const rows = data?.resources;
  const columns = [
    { title: "Operation", key: "operation", cell: (/** @type {Operation} */ one) => html`<a class="name" title=${one.id} href=${href(["d", name, "runs", "bulk", one.id])}>${operationName(/** @type {any} */ (one))}</a>` },
    { title: "Status", key: "status", cell: (/** @type {Operation} */ one) => html`<${Pill} status=${one.status} />` },
    { title: "Handled", key: "handled", cell: (/** @type {Operation} */ one) => progressInWords(/** @type {any} */ (one)) },
    { title: "Filters", key: "filters", cell: (/** @type {Operation} */ one) => html`<${Criteria} name=${name} where=${one.where} />` },
    { title: "Started", key: "started", cell: (/** @type {Operation} */ one) => html`<${Ago} at=${one.created_at} />` },
    { title: "By", key: "by", cell: starter },
    ...(can("run") ? [{ title: "", key: "actions", align: RIGHT, cell: (/** @type {Operation} */ one) => html`<${Stop} name=${name} operation=${one} onDone=${reload} isSmall />` }] : []),
  ];
  return html`
    <${Page} title="Bulk operations" crumbs=${[{ label: name }, { label: "Runs", href: href(["d", name, "runs"]) }]}>
      <${ErrorBox} error=${error} />
      ${!rows && !error && html`<${Loading} />`}
      ${rows && html`
        <${Table} label="Bulk operations" columns=${columns} rows=${rows} rowKey="id" onRow=${(/** @type {Operation} */ one) => navigate(["d", name, "runs", "bulk", one.id])}
          empty=${html`<${Empty} title="No bulk operations yet" text="A bulk operation retries or cancels all runs that match the filters of the page Runs." action=${html`<a href=${href(["d", name, "runs"], { status: "failed" })}>Runs that failed or were cancelled</a>`} />`} />
        <${PageBar} offset=${offset} limit=${PAGE} found=${rows.length} total=${null} />`}
    <//>`;
}

/** @param {Operation} operation */
const starter = ({ created_by: by }) => (by ? plain(by.name || by.key_id) : html`<span class="quiet">–</span>`);

/** @param {{name: string, id: string, outcome: string, offset: number}} props */
function OneOperation({ name, id, outcome, offset }) {
  const api = deployment(name);
  const path = `/runs/bulk/${encodeURIComponent(id)}`;
  const { data, error, reload } = useResource(async (signal) => {
    const operation = await api.call("GET", path, { signal });
    const runs = await api.call("GET", `${path}/runs`, { query: { outcome, limit: PAGE, offset }, signal });
    return { operation, runs: runs.resources };
  }, [name, id, outcome, offset], { every: LOOK_AGAIN_MS });
  const operation = data?.operation;
  const heading = operation ? operationName(operation) : "Bulk operation";
  useDocumentTitle(operation && `${heading} · ${name}`);
  const crumbs = [{ label: name }, { label: "Runs", href: href(["d", name, "runs"]) }, { label: "Bulk operations", href: href(["d", name, "runs", "bulk"]) }];
  return html`
    <${Page} title=${heading} crumbs=${crumbs} status=${operation && html`<${Pill} status=${operation.status} />`} actions=${operation && html`<${Stop} name=${name} operation=${operation} onDone=${reload} />`}>
      <${ErrorBox} error=${error} />
      ${!operation && !error && html`<${Loading} />`}
      ${operation && html`
        <${Facts} name=${name} operation=${operation} />
        <p class="progress" role="status"><progress max=${Math.max(operation.total, 1)} value=${operation.total - operation.waiting} aria-label="Handled runs"></progress> ${progressInWords(operation)}</p>
        <${FilterBar} label="Runs of the operation"><${ChoiceFilter} label="Outcome" name="outcome" value=${outcome} options=${OUTCOMES} /><//>
        <${HandledRuns} name=${name} runs=${data.runs} isCancellation=${operation.action === "cancel"} isFiltered=${outcome !== ""} />
        <${PageBar} offset=${offset} limit=${PAGE} found=${data.runs.length} total=${outcome ? operation[outcome] : operation.total} />`}
    <//>`;
}

/** @param {{name: string, operation: Operation}} props */
function Facts({ name, operation }) {
  return html`
    <dl class="facts">
      <dt>Filters</dt><dd><${Criteria} name=${name} where=${operation.where} /></dd>
      <dt>Rate</dt><dd>${count(operation.rate)} ${operation.rate === 1 ? "run" : "runs"} per second</dd>
      ${operation.action === "retry" && html`<dt>Revision</dt><dd>${operation.revision_id ? html`<${RunRevision} name=${name} id=${operation.revision_id} />` : "the one that serves"}${operation.force && html` <span class="quiet">· threads that have changed are forked</span>`}</dd>`}
      <dt>Started</dt><dd><${Ago} at=${operation.created_at} /> <span class="quiet">by</span> ${starter(operation)}</dd>
      ${operation.ended_at && html`<dt>Ended</dt><dd><${Ago} at=${operation.ended_at} /></dd>`}
    </dl>`;
}

/** @param {{name: string, runs: any[], isCancellation: boolean, isFiltered: boolean}} props */
function HandledRuns({ name, runs, isCancellation, isFiltered }) {
  const titles = useTitles(name, runs.map((one) => one.thread_id));
  const columns = [
    { title: "Run", key: "run", primary: true, cell: (/** @type {any} */ one) => html`<a title=${one.run_id} href=${href(["d", name, "runs", one.thread_id, one.run_id])}>Run\u00a0${short(one.run_id)}</a>` },
    { title: "Outcome", key: "status", cell: (/** @type {any} */ one) => (one.outcome ? html`<${Pill} status=${one.outcome} />` : html`<span class="quiet">waits</span>`) },
    { title: "Reason", key: "detail", cell: (/** @type {any} */ one) => one.detail && html`<span class="wrap">${plain(one.detail.slice(0, 2_000))}</span>` },
    { title: "New run", key: "new", hidden: isCancellation, cell: (/** @type {any} */ one) => one.new_run_id && html`<a title=${one.new_run_id} href=${href(["d", name, "runs", one.thread_id, one.new_run_id])}>Run\u00a0${short(one.new_run_id)}</a>` },
    { title: "Thread", key: "thread", cell: (/** @type {any} */ one) => html`<a class="name" title=${one.thread_id} href=${href(["d", name, "threads", one.thread_id])}>${titles.get(one.thread_id) ?? short(one.thread_id)}</a>` },
    { title: "Handled", key: "handled", cell: (/** @type {any} */ one) => html`<${Ago} at=${one.ended_at} />` },
  ];
  return html`<${Table} label="Runs of the operation" columns=${columns} rows=${runs} rowKey="run_id"
    empty=${html`<${Empty} title=${isFiltered ? "No run has this outcome" : "No runs"} text=${isFiltered ? undefined : "No run matched the filters when the operation started."} />`} />`;
}

/** Stops an operation that is in progress. @param {{name: string, operation: Operation, onDone: () => void, isSmall?: boolean}} props */
function Stop({ name, operation, onDone, isSmall = false }) {
  if (operation.status !== "running" || !can("run")) return null;
  const stop = async () => {
    const text = html`<p>What it has done to runs stays. ${count(operation.waiting)} of its runs are not handled any more.</p>`;
    if (!(await ask({ title: "Stop this operation?", text, action: "Stop", kind: "danger" }))) return;
    await deployment(name).call("POST", `/runs/bulk/${operation.id}/cancel`);
    notify("The operation was stopped");
    onDone();
  };
  return html`<${Button} kind=${isSmall ? "plain" : "danger"} onClick=${stop}>Stop…<//>`;
}
