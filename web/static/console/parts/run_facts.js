// The facts of a run: its thread, assistant, revision, times, and the run that it retries.

import { control } from "../core/api.js";
import { useDeployment } from "../core/deployments.js";
import { html } from "../core/dom.js";
import { assistantName, between, duration, plain, revisionName, short } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { queueInWords, tookOf, waitsInWords } from "./runs.js";
import { Ago, Id } from "./index.js";

/** @type {Record<string, string>} */
const WAITS = { answer: "for an answer to its question", resume: "to be resumed: it stopped at a breakpoint" };

/**
 * @param {{name: string, run: Record<string, any>, threadName: string, assistant?: import("../core/names.js").Assistant}} props
 *   `assistant` is undefined while it loads or if it was deleted
 */
export function RunFacts({ name, run, threadName, assistant }) {
  const waited = run.started_at ? between(run.created_at, run.started_at) : null;
  const graph = run.metadata?.graph_id ?? assistant?.graph_id;
  const retried = run.metadata?.retry_of;
  const playground = href(["d", name, "playground", ...(graph ? [String(graph)] : [])], { thread: run.thread_id });
  return html`
    <dl class="run-facts">
      <dt>Run</dt><dd><${Id} value=${run.run_id} /></dd>
      <dt>Thread</dt><dd><a href=${href(["d", name, "threads", run.thread_id])}>${threadName}</a> <${Id} value=${run.thread_id} /></dd>
      <dt>Assistant</dt><dd><a href=${href(["d", name, "assistants", run.assistant_id])}>${assistantName(assistant ?? { graph_id: graph })}</a>${graph && assistant && assistantName(assistant) !== graph && html` <span class="quiet">graph ${plain(String(graph).slice(0, 100))}</span>`}</dd>
      ${run.revision_id && html`<dt>Revision</dt><dd><${RunRevision} name=${name} id=${run.revision_id} /></dd>`}
      <dt>Created</dt><dd><${Ago} at=${run.created_at} />${waited !== null && waited >= 0 && html`, waited ${duration(waited)}`}</dd>
      ${run.started_at && html`<dt>Duration</dt><dd>${duration(tookOf(run))}${run.attempts?.length > 0 && html` in ${run.attempts.length + 1} attempts, with the time between them`}</dd>`}
      ${run.queue && html`<dt>Waits</dt><dd class="waits">${queueInWords(run.queue)}, for ${duration(run.queue.waiting_seconds)} so far</dd>`}
      ${run.waits_for && html`<dt>Waits</dt><dd class="waits">${WAITS[run.waits_for] ?? waitsInWords(run)}. <a href=${href("/inbox", { thread: run.thread_id })}>Answer in the inbox</a> <a href=${playground}>Continue in the playground</a></dd>`}
      ${typeof retried === "string" && html`<dt>Retry of</dt><dd><a title=${retried} href=${href(["d", name, "runs", run.thread_id, retried])}>Run ${plain(short(retried))}</a></dd>`}
    </dl>`;
}

/** The number of a revision, with a link to it on the deployment's page. @param {{name: string, id: string}} props */
export function RunRevision({ name, id }) {
  const deployment = useDeployment({ name });
  const { data } = useResource(async (signal) => (deployment ? control("GET", `/v2/deployments/${deployment.id}/revisions/${encodeURIComponent(id)}`, { signal }) : null), [deployment?.id, id]);
  if (!deployment || !data?.number) return html`<${Id} value=${id} />`;
  return html`<a href=${href(["deployments", deployment.id], { revision: data.number })}>${revisionName(data.number)}</a>`;
}
