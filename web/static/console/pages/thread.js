// A thread: its title, questions, checkpoints with the changes of each, and runs. Its state can be edited, forked and replayed from any checkpoint.

import { deployment, isBench } from "../core/api.js";
import { canRunAt } from "../core/deployments.js";
import { html, useEffect, useMemo, useState } from "../core/dom.js";
import { bytes, count, plain, short, threadTitle } from "../core/format.js";
import { useDocumentTitle } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, navigate, setQuery } from "../core/router.js";
import { idOf } from "../parts/checkpoints.js";
import { CheckpointDetail } from "../parts/checkpoint_detail.js";
import { CheckpointList } from "../parts/checkpoint_list.js";
import { EditState, followers } from "../parts/edit_state.js";
import { RenameThread } from "../parts/rename_thread.js";
import { RunTable } from "../parts/run_table.js";
import { ThreadTimeline } from "../parts/run_timeline.js";
import { createHistory, createStates } from "../parts/thread_history.js";
import { Ago, Button, Confirm, Empty, ErrorBox, Id, Json, Loading, Page, Tabs, ThreadStatus, ask, notify } from "../parts/index.js";

/** @typedef {import("../parts/checkpoints.js").State} State */
/** @typedef {Record<string, any>} Thread */

const LOOK_AGAIN_MS = 2_000;
const RUNS = 50;
const RUNS_TIMED = 1_000;
/** @type {Map<string, any>} */
const NO_TIMES = new Map();
const TABS = [{ id: "checkpoints", label: "Checkpoints" }, { id: "timeline", label: "Timeline" }, { id: "runs", label: "Runs" }, { id: "metadata", label: "Metadata" }];

/** @param {Record<string, string>} params */
export const title = (params) => `Thread ${short(params.thread)}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function ThreadPage({ params, query }) {
  const { name, thread: id } = params;
  const api = deployment(name);
  const { data: thread, error, reload } = useResource((signal) => api.call("GET", `/threads/${encodeURIComponent(id)}`, { signal, query: { include: "ttl,title" } }), [name, id], { every: LOOK_AGAIN_MS });
  const crumbs = [{ label: name }, { label: "Threads", href: href(["d", name, "threads"]) }];
  useDocumentTitle(thread && threadTitle(thread));
  if (!thread) {
    return html`<${Page} title=${title(params)} crumbs=${crumbs}>${error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`}<//>`;
  }
  const tab = query.tab || "checkpoints";
  const isBusy = thread.status === "busy";
  return html`
    <${Page} title=${threadTitle(thread)} crumbs=${crumbs} status=${html`<${RenameThread} key=${id} name=${name} thread=${thread} onDone=${reload} />`} actions=${html`<${Actions} name=${name} thread=${thread} />`}>
      <p class="facts">
        <${ThreadStatus} thread=${thread} /> <${Id} value=${id} />
        ${isBusy && html`<span class="live" role="status">live</span>`}
        <span>graph <b>${graphOf(thread)}</b></span>
        <span>updated <${Ago} at=${thread.updated_at} /></span>
        <span>created <${Ago} at=${thread.created_at} /></span>
        ${thread.ttl?.expires_at && html`<span>expires <${Ago} at=${thread.ttl.expires_at} /></span>`}
      </p>
      ${thread.error && !isBusy && html`<p class="failure"><strong>${plain(String(thread.error.error).slice(0, 200))}</strong> ${plain(String(thread.error.message ?? "").slice(0, 2_000))}</p>`}
      <${Questions} name=${name} thread=${thread} />
      <${Tabs} label="Parts of the thread" tabs=${TABS} current=${tab} onChange=${(/** @type {string} */ to) => setQuery({ tab: to === "checkpoints" ? null : to })}>
      ${tab === "checkpoints" && html`<${Checkpoints} key=${id} name=${name} thread=${thread} query=${query} reload=${reload} />`}
      ${tab === "timeline" && html`<${ThreadTimeline} key=${id} name=${name} thread=${thread} />`}
      ${tab === "runs" && html`<${Runs} name=${name} id=${id} isBusy=${isBusy} />`}
      ${tab === "metadata" && html`<${About} name=${name} thread=${thread} />`}
      <//>
    <//>`;
}

/** @param {Thread} thread */
const graphOf = (thread) => plain(String(thread.metadata?.graph_id ?? "none yet").slice(0, 100));

/** @param {Thread} thread */
const playgroundOf = (thread) => href(["d", thread.name, "playground", ...(thread.metadata?.graph_id ? [String(thread.metadata.graph_id)] : [])], { thread: thread.thread_id });

/** @param {{name: string, thread: Thread}} props */
function Actions({ name, thread }) {
  const [isDeleting, setDeleting] = useState(false);
  const [isCopying, setCopying] = useState(false);
  const api = deployment(name);
  const path = `/threads/${thread.thread_id}`;
  const copy = async () => {
    setCopying(true);
    try {
      const created = await api.call("POST", `${path}/copy`);
      notify("The thread was copied. This page shows the copy.");
      navigate(["d", name, "threads", created.thread_id]);
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
    }
    setCopying(false);
  };
  const remove = async () => {
    try {
      await api.call("DELETE", path);
      notify("Thread deleted");
      navigate(["d", name, "threads"]);
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
      setDeleting(false);
    }
  };
  return html`
    ${!isBench(name) && html`<a class="as-button" href=${playgroundOf({ ...thread, name })}>Playground</a>`}
    ${canRunAt(name) && html`
      <${Button} onClick=${copy} busy=${isCopying}>Copy<//>
      <${Button} kind="danger" onClick=${() => setDeleting(true)}>Delete…<//>
      <${Confirm} open=${isDeleting} title="Delete this thread?" action="Delete" kind="danger" onConfirm=${remove} onClose=${() => setDeleting(false)}>
        <p>Its state, checkpoints and runs are deleted too. A live run on it is cancelled.</p>
      <//>`}`;
}

/** The open questions of the thread, with links to the pages where they are answered. @param {{name: string, thread: Thread}} props */
function Questions({ name, thread }) {
  const questions = Object.values(thread.interrupts ?? {}).flat();
  if (!questions.length || thread.status !== "interrupted") return null;
  return html`
    <section class="open-questions" aria-label="Waits for an answer">
      <h2>${questions.length === 1 ? "Waits for an answer" : `Waits for ${questions.length} answers`} <a href=${href("/inbox", { thread: thread.thread_id })}>Answer in the inbox</a> <a href=${playgroundOf({ ...thread, name })}>Answer in the playground</a></h2>
      ${questions.slice(0, 20).map((each) => html`<${Json} key=${each.id} value=${each.value} />`)}
    </section>`;
}

/** @param {{name: string, thread: Thread, query: Record<string, string>, reload: () => void}} props */
function Checkpoints({ name, thread, query, reload }) {
  const id = thread.thread_id;
  const api = deployment(name);
  const history = useMemo(() => createHistory(api, id), [name, id]);
  const states = useMemo(() => createStates(api, id), [name, id]);
  const [edited, setEdited] = useState(/** @type {State | null} */ (null));
  const isBusy = thread.status === "busy";
  useEffect(() => () => history.leave(), [history]);
  useEffect(() => { void history.refresh(); }, [history, thread.updated_at, thread.state_updated_at, thread.status]);
  useEffect(() => {
    if (!isBusy) return;
    const timer = setInterval(() => document.hidden || history.refresh(), LOOK_AGAIN_MS);
    return () => clearInterval(timer);
  }, [history, isBusy]);

  const { data: runs } = useResource(async (signal) => timesOf(await api.call("GET", `/threads/${encodeURIComponent(id)}/runs`, { signal, query: { limit: RUNS_TIMED, select: ["run_id", "started_at", "ended_at", "attempts"] } })),
    [name, id, thread.updated_at, thread.status]);
  const times = runs ?? NO_TIMES;

  const rows = history.rows.value;
  const chosen = query.checkpoint ?? (rows.length ? idOf(rows[0]) : null);
  const row = rows.find((state) => idOf(state) === chosen);
  const choose = (/** @type {string} */ checkpoint) => setQuery({ checkpoint });
  const start = async (/** @type {string} */ checkpoint, /** @type {{text: string, failure: string, goto?: string[]}} */ { text, failure, goto }) => {
    try {
      await api.call("POST", `/threads/${encodeURIComponent(id)}/runs`, { body: replayOf(thread, checkpoint, goto) });
      setQuery({ checkpoint: null });
      notify(text);
    } catch (error) {
      notify(`${failure}: ${/** @type {Error} */ (error).message}`, "error");
    }
    reload();
  };
  const replay = (/** @type {State} */ state) => start(idOf(state), { text: "A new run continues from this checkpoint", failure: "No run was started" });
  const save = async (/** @type {any} */ body, /** @type {boolean} */ andRun) => {
    const path = `/threads/${encodeURIComponent(id)}/state`;
    const { checkpoint_id: saved } = await api.call("POST", path, { body });
    const { next } = await api.call("GET", `${path}/${saved}`, { query: { select: ["next"] } });
    const after = followers(/** @type {State} */ (edited), next);
    setEdited(null);
    setQuery({ checkpoint: null });
    if (andRun) await runFrom(saved, after, body.as_node !== null);
    else notify(`Saved. ${followedBy(after)}`);
    reload();
    await history.refresh();
  };
  const runFrom = async (/** @type {string} */ saved, /** @type {ReturnType<typeof followers>} */ after, /** @type {boolean} */ isNodeChosen) => {
    const failure = "The state was saved, but no run was started";
    if (after.next.length) return start(saved, { text: `Saved, and a new run was started. ${followedBy(after)}`, failure });
    if (isNodeChosen || !after.lost.length) return notify("Saved. No run was started, because no node follows the changed state.");
    const names = inWords(after.lost);
    const text = `Before the change, ${names} was the next node. No node follows the changed state by itself: an update does not repeat a Command(goto), and an edge may now lead to the end.`;
    if (await ask({ title: `Run ${names}?`, text, action: `Run ${names}` })) await start(saved, { text: `Saved, and a new run was started with ${names}`, failure, goto: after.lost });
    else notify("Saved. No run was started.");
  };
  if (history.error.value && !rows.length) return html`<${ErrorBox} error=${history.error.value} />`;
  if (!rows.length) return history.isLoading.value || !history.isWhole.value ? html`<${Loading} />` : html`<${NoCheckpoints} name=${name} thread=${thread} />`;
  return html`
    ${history.error.value && html`<${ErrorBox} error=${history.error.value} />`}
    <div class="thread-split">
      <div>
        <p class="quiet" aria-live="polite">${count(rows.length)}${history.isWhole.value ? "" : "+"} ${rows.length === 1 ? "checkpoint" : "checkpoints"}, newest first</p>
        <${CheckpointList} rows=${rows} runs=${times} isWhole=${history.isWhole.value} chosen=${chosen} onChoose=${choose} onEnd=${history.more} />
      </div>
      ${chosen && html`<${CheckpointDetail} name=${name} thread=${id} checkpoint=${chosen} row=${row} runs=${times} states=${states} isBusy=${isBusy} tab=${query.part || "difference"}
        onTab=${(/** @type {string} */ to) => setQuery({ part: to === "difference" ? null : to })} onEdit=${setEdited} onReplay=${replay} />`}
    </div>
    ${edited && html`<${Editor} name=${name} thread=${thread} state=${edited} onSave=${save} onClose=${() => setEdited(null)} />`}`;
}

/** @param {Record<string, any>[]} runs @returns {Map<string, any>} by id */
const timesOf = (runs) => new Map(runs.map((run) => [run.run_id, run]));

/** @param {string[]} names */
const inWords = (names) => plain(names.map((name) => name.slice(0, 60)).join(", ").slice(0, 200));

/** @param {ReturnType<typeof followers>} after */
function followedBy({ next, lost }) {
  const following = next.length ? `Next node: ${inWords(next)}` : "No node follows";
  return lost.length ? `${following}; before the change it was ${inWords(lost)}.` : `${following}.`;
}

/**
 * The body of a run that continues from a checkpoint with the thread's assistant, at the nodes of `goto` if there are any.
 * @param {Thread} thread
 * @param {string} checkpoint
 * @param {string[]} [goto]
 */
const replayOf = (thread, checkpoint, goto) => ({
  assistant_id: thread.metadata?.assistant_id ?? thread.metadata?.graph_id,
  ...(goto ? { command: { goto } } : { input: null }),
  checkpoint: { checkpoint_id: checkpoint, checkpoint_ns: "" },
  stream_mode: ["values", "updates", "messages-tuple"],
  stream_resumable: true,
});

/** @param {{name: string, thread: Thread, state: State, onSave: any, onClose: () => void}} props */
function Editor({ name, thread, state, onSave, onClose }) {
  const assistant = String(thread.metadata?.assistant_id ?? thread.metadata?.graph_id ?? "");
  const { data } = useResource((signal) => deployment(name).call("GET", `/assistants/${encodeURIComponent(assistant)}/graph`, { signal }), [name, assistant]);
  const nodes = (data?.nodes ?? []).map((/** @type {any} */ node) => String(node.id)).filter((/** @type {string} */ node) => node !== "__start__");
  return html`<${EditState} state=${state} nodes=${nodes} onSave=${onSave} onClose=${onClose} />`;
}

/** @param {{name: string, thread: Thread}} props */
const NoCheckpoints = ({ name, thread }) => html`<${Empty} title="No checkpoints yet" text="Each step of a run writes a checkpoint. No run has worked on this thread yet."
  action=${html`<a href=${playgroundOf({ ...thread, name })}>Open it in the playground</a>`} />`;

/** @param {{name: string, id: string, isBusy: boolean}} props */
function Runs({ name, id, isBusy }) {
  const { data, error, reload } = useResource((signal) => deployment(name).call("GET", `/threads/${encodeURIComponent(id)}/runs`, { signal, query: { limit: RUNS } }), [name, id, isBusy], { every: LOOK_AGAIN_MS });
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  if (!data.length) return html`<${Empty} title="No runs" text="No run was created on this thread, or its runs were deleted." />`;
  return html`<${RunTable} name=${name} runs=${data} reload=${reload} isOfThread />`;
}

/** @param {{name: string, thread: Thread}} props */
function About({ name, thread }) {
  const { data: storage } = useResource((signal) => deployment(name).call("GET", `/threads/${thread.thread_id}/storage`, { signal }), [name, thread.thread_id]);
  return html`
    <section aria-label="Metadata"><h2>Metadata</h2><${Json} value=${thread.metadata} /></section>
    <section aria-label="Configuration"><h2>Configuration of the newest run</h2><${Json} value=${thread.config} /></section>
    ${storage && html`<section aria-label="Storage"><h2>Storage</h2>
      <p>${bytes(storage.total_bytes)} in total: ${count(storage.checkpoints.count)} checkpoints and ${count(storage.channel_values.count)} versions of values.</p></section>`}`;
}
