// The threads of a deployment, one page at a time. Filters: metadata, values, status and time of the last update.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { THREAD_TITLE, count, plain, threadTitle } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href, navigate } from "../core/router.js";
import { can } from "../core/session.js";
import { Ago, Button, Confirm, Empty, ErrorBox, Id, Loading, Page, Table, ThreadStatus, notify } from "../parts/index.js";
import { ChoiceFilter, FilterBar, PageBar, TextFilter } from "../parts/filter_bar.js";
import { PERIODS, filterOf, since } from "../parts/filters.js";

/** @typedef {{thread_id: string, status: string, created_at: string, updated_at: string, metadata: Record<string, unknown>, interrupts?: Record<string, unknown[]>, extracted?: {title: string}}} Thread */

const LIMIT = 25;
const LOOK_AGAIN_MS = 5_000;
const SHOWN_FIELDS = ["thread_id", "status", "created_at", "updated_at", "metadata", "interrupts"];
const SYSTEM_METADATA = new Set(["graph_id", "assistant_id", "created_by", "title"]); // the service sets these, or the page shows them elsewhere
const ONE = /** @type {const} */ (1), THREE = /** @type {const} */ (3); // priorities of columns where there is little room
const STATUSES = ["", "idle", "busy", "interrupted", "error"].map((value) => ({ value, label: value || "Any status" }));
const SORTS = [
  { value: "", label: "Last updated first" },
  { value: "updated_at.asc", label: "Last updated last" },
  { value: "created_at.desc", label: "Newest first" },
  { value: "created_at.asc", label: "Oldest first" },
  { value: "status.asc", label: "By status" },
];

/** @param {Record<string, string>} params */
export const title = (params) => `Threads · ${params.name}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function ThreadsPage({ params, query }) {
  const { filter, errors } = parseFilters(query);
  const offset = Number(query.offset) || 0;
  const [sort_by, sort_order] = (query.sort || "updated_at.desc").split(".");
  const api = deployment(params.name);
  const key = JSON.stringify([params.name, query]);
  const isInvalid = Object.keys(errors).length > 0;
  const { data, error, loading, reload } = useResource(async (signal) => {
    if (isInvalid) return null;
    const body = { ...filter, limit: LIMIT, offset, sort_by, sort_order, select: SHOWN_FIELDS, extract: THREAD_TITLE };
    const answer = await api.respond("POST", "/threads/search", { body, signal });
    const total = answer.headers.get("x-pagination-total");
    return { threads: await answer.json(), total: total === null ? null : Number(total) };
  }, [key], { every: LOOK_AGAIN_MS });

  return html`
    <${Page} title="Threads" crumbs=${[{ label: params.name }]}>
      <${FilterBar} label="Search threads">
        <${TextFilter} label="Metadata" name="metadata" value=${query.metadata} placeholder="user=ann, or JSON" error=${errors.metadata} wide />
        <${TextFilter} label="Values" name="values" value=${query.values} placeholder="topic=weather, or JSON" error=${errors.values} wide />
        <${ChoiceFilter} label="Status" name="status" value=${query.status} options=${STATUSES} />
        <${ChoiceFilter} label="Updated" name="since" value=${query.since} options=${PERIODS} />
        <${ChoiceFilter} label="Order" name="sort" value=${query.sort} options=${SORTS} />
      <//>
      ${error && html`<${ErrorBox} error=${error} />`}
      ${!data && loading && html`<${Loading} />`}
      ${data && html`<${ThreadList} name=${params.name} page=${data} offset=${offset} reload=${reload} isFiltered=${Object.keys(filter).length > 0} key=${key} />`}
    <//>`;
}

/**
 * The filters in the address, as the API takes them, and the errors of those that cannot be parsed.
 * @param {Record<string, string>} query
 */
function parseFilters(query) {
  /** @type {Record<string, any>} */
  const filter = {};
  /** @type {Record<string, string>} */
  const errors = {};
  for (const name of ["metadata", "values"]) {
    try {
      const value = filterOf(query[name]);
      if (value) filter[name] = value;
    } catch (error) {
      errors[name] = /** @type {Error} */ (error).message;
    }
  }
  if (query.status) filter.status = query.status;
  const from = since(query.since);
  if (from) filter.since = from;
  return { filter, errors };
}

/** @param {{name: string, page: {threads: Thread[], total: number | null}, offset: number, reload: () => void, isFiltered: boolean}} props */
function ThreadList({ name, page: { threads, total }, offset, reload, isFiltered }) {
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  const [deleting, setDeleting] = useState(/** @type {string[] | null} */ (null));
  const api = deployment(name);
  if (!threads.length) return html`<${NoThreads} name=${name} isFiltered=${isFiltered} />`;
  const choose = (/** @type {string} */ id, /** @type {boolean} */ isChosen) => {
    const next = new Set(chosen);
    if (isChosen) next.add(id); else next.delete(id);
    setChosen(next);
  };
  const remove = async () => {
    try {
      const { pruned_count: deleted } = await api.call("POST", "/threads/prune", { body: { thread_ids: deleting, strategy: "delete" } });
      notify(deleted === 1 ? "1 thread deleted" : `${deleted} threads deleted`);
      setChosen(new Set());
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
    }
    setDeleting(null);
    reload();
  };
  const isAll = threads.every((thread) => chosen.has(thread.thread_id));
  const columns = [
    ...(can("run") ? [{
      title: html`<input type="checkbox" aria-label="Choose all threads of this page" checked=${isAll}
        onChange=${() => setChosen(isAll ? new Set() : new Set(threads.map((thread) => thread.thread_id)))} />`,
      key: "choose",
      cell: (/** @type {Thread} */ thread) => html`<input type="checkbox" aria-label=${`Choose ${threadTitle(thread)}`} checked=${chosen.has(thread.thread_id)}
        onClick=${(/** @type {Event} */ event) => event.stopPropagation()}
        onChange=${(/** @type {Event} */ event) => choose(thread.thread_id, /** @type {HTMLInputElement} */ (event.currentTarget).checked)} />`,
    }] : []),
    { title: "Thread", key: "thread", primary: true, cell: (/** @type {Thread} */ thread) => html`<a class="name" title=${threadTitle(thread)} href=${href(["d", name, "threads", thread.thread_id])}>${threadTitle(thread)}</a>` },
    { title: "Status", key: "status", priority: ONE, cell: (/** @type {Thread} */ thread) => html`<${ThreadStatus} thread=${thread} />` },
    { title: "Graph", key: "graph", cell: (/** @type {Thread} */ thread) => line(thread.metadata?.graph_id) },
    { title: "Metadata", key: "metadata", priority: THREE, cell: (/** @type {Thread} */ thread) => html`<${Metadata} metadata=${thread.metadata} />` },
    { title: "Updated", key: "updated", cell: (/** @type {Thread} */ thread) => html`<${Ago} at=${thread.updated_at} />` },
    { title: "Created", key: "created", priority: THREE, cell: (/** @type {Thread} */ thread) => html`<${Ago} at=${thread.created_at} />` },
    { title: "Id", key: "id", cell: (/** @type {Thread} */ thread) => html`<${Id} value=${thread.thread_id} />` },
  ];
  return html`
    <div class="list-actions">
      <span class="quiet" aria-live="polite">${total !== null && html`${count(total)} ${total === 1 ? "thread" : "threads"}${isFiltered ? " found" : ""}`}</span>
      ${can("run") && chosen.size > 0 && html`<${Button} kind="danger" onClick=${() => setDeleting([...chosen])}>Delete ${chosen.size}…<//>`}
    </div>
    <${Table} columns=${columns} rows=${threads} rowKey=${(/** @type {Thread} */ thread) => thread.thread_id}
      onRow=${(/** @type {Thread} */ thread) => navigate(["d", name, "threads", thread.thread_id])} />
    <${PageBar} offset=${offset} limit=${LIMIT} found=${threads.length} total=${total} />
    <${Confirm} open=${deleting !== null} title=${deleting?.length === 1 ? "Delete this thread?" : `Delete ${deleting?.length} threads?`} action="Delete" kind="danger"
      onConfirm=${remove} onClose=${() => setDeleting(null)}>
      <p>Their states, checkpoints and runs are deleted too. Live runs on them are cancelled.</p>
    <//>`;
}

/** @param {unknown} value */
const line = (value) => (value == null ? "" : plain((typeof value === "string" ? value : JSON.stringify(value)).slice(0, 80)));

/** The first entries of a thread's metadata, without those that the service sets. @param {{metadata: Record<string, unknown>}} props */
function Metadata({ metadata }) {
  const entries = Object.entries(metadata ?? {}).filter(([name]) => !SYSTEM_METADATA.has(name));
  return html`<span class="chips">${entries.slice(0, 4).map(([name, value]) => html`<span class="chip" key=${name}>${plain(name.slice(0, 40))}=${line(value).slice(0, 40)}</span>`)}${entries.length > 4 && html`<span class="quiet"> +${entries.length - 4}</span>`}</span>`;
}

/** @param {{name: string, isFiltered: boolean}} props */
function NoThreads({ name, isFiltered }) {
  if (isFiltered) {
    return html`<${Empty} title="No thread matches" text="Remove a filter, or choose a longer period." action=${html`<a href=${href(["d", name, "threads"])}>Show all threads</a>`} />`;
  }
  return html`<${Empty} title="No threads yet" text="A thread keeps the state of a conversation. A client creates one, or the playground does with the first message."
    action=${html`<a href=${href(["d", name, "playground"])}>Open the playground</a>`} />`;
}
