// The threads of a deployment: found by metadata, values, status and time, a page at a time.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { count, plain } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href, navigate } from "../core/router.js";
import { can } from "../core/session.js";
import { Ago, Button, Confirm, Empty, ErrorBox, Loading, Page, Pill, Table, notify } from "../parts/index.js";
import { ChoiceFilter, FilterBar, PageBar, TextFilter } from "../parts/filter_bar.js";
import { PERIODS, filterOf, since } from "../parts/filters.js";

/** @typedef {{thread_id: string, status: string, created_at: string, updated_at: string, metadata: Record<string, unknown>, interrupts?: Record<string, unknown[]>}} Thread */

const LIMIT = 25;
const LOOK_AGAIN_MS = 5_000;
const SHOWN_FIELDS = ["thread_id", "status", "created_at", "updated_at", "metadata", "interrupts"];
const OWN_METADATA = new Set(["graph_id", "assistant_id", "created_by"]);
const STATUSES = ["", "idle", "busy", "interrupted", "error"].map((value) => ({ value, label: value || "Any status" }));
const SORTS = [
  { value: "", label: "Last updated first" },
  { value: "updated_at.asc", label: "Last updated last" },
  { value: "created_at.desc", label: "Newest first" },
  { value: "created_at.asc", label: "Oldest first" },
  { value: "status.asc", label: "By status" },
];

/** @param {Record<string, string>} params */
export const title = (params) => `Threads of ${params.name}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function ThreadsPage({ params, query }) {
  const { filter, errors } = wanted(query);
  const offset = Number(query.offset) || 0;
  const [sort_by, sort_order] = (query.sort || "updated_at.desc").split(".");
  const api = deployment(params.name);
  const key = JSON.stringify([params.name, query]);
  const isWrong = Object.keys(errors).length > 0;
  const { data, error, loading, reload } = useResource(async (signal) => {
    if (isWrong) return null;
    const body = { ...filter, limit: LIMIT, offset, sort_by, sort_order, select: SHOWN_FIELDS };
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
      ${data && html`<${Found} name=${params.name} found=${data} offset=${offset} reload=${reload} isFiltered=${Object.keys(filter).length > 0} key=${key} />`}
    <//>`;
}

/**
 * What the address asks for, and what of it cannot be understood.
 * @param {Record<string, string>} query
 */
function wanted(query) {
  /** @type {Record<string, any>} */
  const filter = {};
  /** @type {Record<string, string>} */
  const errors = {};
  for (const name of ["metadata", "values"]) {
    try {
      const asked = filterOf(query[name]);
      if (asked) filter[name] = asked;
    } catch (error) {
      errors[name] = /** @type {Error} */ (error).message;
    }
  }
  if (query.status) filter.status = query.status;
  const from = since(query.since);
  if (from) filter.since = from;
  return { filter, errors };
}

/** @param {{name: string, found: {threads: Thread[], total: number | null}, offset: number, reload: () => void, isFiltered: boolean}} props */
function Found({ name, found: { threads, total }, offset, reload, isFiltered }) {
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  const [leaving, setLeaving] = useState(/** @type {string[] | null} */ (null));
  const api = deployment(name);
  if (!threads.length) return html`<${None} name=${name} isFiltered=${isFiltered} />`;
  const choose = (/** @type {string} */ id, /** @type {boolean} */ isChosen) => {
    const next = new Set(chosen);
    if (isChosen) next.add(id); else next.delete(id);
    setChosen(next);
  };
  const remove = async () => {
    try {
      const { pruned_count: gone } = await api.call("POST", "/threads/prune", { body: { thread_ids: leaving, strategy: "delete" } });
      notify(gone === 1 ? "1 thread deleted" : `${gone} threads deleted`);
      setChosen(new Set());
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
    }
    setLeaving(null);
    reload();
  };
  const isAll = threads.every((thread) => chosen.has(thread.thread_id));
  const columns = [
    ...(can("run") ? [{
      title: html`<input type="checkbox" aria-label="Choose all threads of this page" checked=${isAll}
        onChange=${() => setChosen(isAll ? new Set() : new Set(threads.map((thread) => thread.thread_id)))} />`,
      key: "choose",
      cell: (/** @type {Thread} */ thread) => html`<input type="checkbox" aria-label=${`Choose thread ${thread.thread_id}`} checked=${chosen.has(thread.thread_id)}
        onClick=${(/** @type {Event} */ event) => event.stopPropagation()}
        onChange=${(/** @type {Event} */ event) => choose(thread.thread_id, /** @type {HTMLInputElement} */ (event.currentTarget).checked)} />`,
    }] : []),
    { title: "Thread", key: "thread", cell: (/** @type {Thread} */ thread) => html`<a class="mono" href=${href(["d", name, "threads", thread.thread_id])}>${thread.thread_id}</a>` },
    { title: "Status", key: "status", cell: (/** @type {Thread} */ thread) => html`<${Pill} status=${thread.status} />${asks(thread) && html` <span class="quiet">waits for an answer</span>`}` },
    { title: "Graph", key: "graph", cell: (/** @type {Thread} */ thread) => short(thread.metadata?.graph_id) },
    { title: "Metadata", key: "metadata", cell: (/** @type {Thread} */ thread) => html`<${Metadata} metadata=${thread.metadata} />` },
    { title: "Updated", key: "updated", cell: (/** @type {Thread} */ thread) => html`<${Ago} at=${thread.updated_at} />` },
    { title: "Created", key: "created", cell: (/** @type {Thread} */ thread) => html`<${Ago} at=${thread.created_at} />` },
  ];
  return html`
    <div class="list-actions">
      <span class="quiet" aria-live="polite">${total !== null && html`${count(total)} ${total === 1 ? "thread" : "threads"}${isFiltered ? " found" : ""}`}</span>
      ${can("run") && chosen.size > 0 && html`<${Button} kind="danger" onClick=${() => setLeaving([...chosen])}>Delete ${chosen.size}…<//>`}
    </div>
    <${Table} columns=${columns} rows=${threads} rowKey=${(/** @type {Thread} */ thread) => thread.thread_id}
      onRow=${(/** @type {Thread} */ thread) => navigate(["d", name, "threads", thread.thread_id])} />
    <${PageBar} offset=${offset} limit=${LIMIT} found=${threads.length} total=${total} />
    <${Confirm} open=${leaving !== null} title=${leaving?.length === 1 ? "Delete this thread?" : `Delete ${leaving?.length} threads?`} action="Delete" kind="danger"
      onConfirm=${remove} onClose=${() => setLeaving(null)}>
      <p>Their states, checkpoints and runs go with them. What runs on them is cancelled.</p>
    <//>`;
}

/** @param {Thread} thread */
const asks = (thread) => thread.status !== "busy" && Object.values(thread.interrupts ?? {}).some((each) => each.length > 0);

/** @param {unknown} value */
const short = (value) => (value == null ? "" : plain((typeof value === "string" ? value : JSON.stringify(value)).slice(0, 80)));

/** The first entries of a thread's own metadata. @param {{metadata: Record<string, unknown>}} props */
function Metadata({ metadata }) {
  const own = Object.entries(metadata ?? {}).filter(([name]) => !OWN_METADATA.has(name));
  return html`<span class="chips">${own.slice(0, 4).map(([name, value]) => html`<span class="chip" key=${name}>${plain(name.slice(0, 40))}=${short(value).slice(0, 40)}</span>`)}${own.length > 4 && html`<span class="quiet"> +${own.length - 4}</span>`}</span>`;
}

/** @param {{name: string, isFiltered: boolean}} props */
function None({ name, isFiltered }) {
  if (isFiltered) {
    return html`<${Empty} title="No thread matches" text="Take a filter away, or look further back." action=${html`<a href=${href(["d", name, "threads"])}>Show all threads</a>`} />`;
  }
  return html`<${Empty} title="No threads yet" text="A thread keeps the state of a conversation. The first run on one makes it."
    action=${html`<a href=${href(["d", name, "playground"])}>Start one in the playground</a>`} />`;
}
