// Runs as rows: what each waits for, how it ended, and what can be done with it.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { between, duration, plain, short } from "../core/format.js";
import { href, navigate } from "../core/router.js";
import { can } from "../core/session.js";
import { CancelRun, RetryRun } from "./run_actions.js";
import { isLive, queueInWords, reasonOf, tookOf } from "./runs.js";
import { Ago, RunStatus, Table } from "./index.js";

/** @typedef {Record<string, any>} Run */

/**
 * `chosen` are the ids of runs that are ticked, if any can be.
 * @param {{name: string, runs: Run[], reload: () => void, isOfThread?: boolean, chosen?: Set<string>, onChoose?: (run: Run, isChosen: boolean) => void}} props
 */
export function RunTable({ name, runs, reload, isOfThread = false, chosen, onChoose }) {
  const link = (/** @type {Run} */ run) => ["d", name, "runs", run.thread_id, run.run_id];
  const columns = [
    ...(chosen && onChoose ? [{
      title: "", key: "choose",
      cell: (/** @type {Run} */ run) => isLive(run) && html`<input type="checkbox" aria-label=${`Choose run ${run.run_id}`} checked=${chosen.has(run.run_id)}
        onClick=${(/** @type {Event} */ event) => event.stopPropagation()}
        onChange=${(/** @type {Event} */ event) => onChoose(run, /** @type {HTMLInputElement} */ (event.currentTarget).checked)} />`,
    }] : []),
    { title: "Run", key: "run", cell: (/** @type {Run} */ run) => html`<a class="mono" title=${run.run_id} href=${href(link(run))}>${isOfThread ? run.run_id : `…${run.run_id.slice(-12)}`}</a>` },
    { title: "Status", key: "status", cell: (/** @type {Run} */ run) => html`<${RunStatus} run=${run} />` },
    { title: "Why", key: "why", cell: (/** @type {Run} */ run) => html`<${Why} run=${run} />` },
    { title: "Graph", key: "graph", cell: (/** @type {Run} */ run) => plain(String(run.metadata?.graph_id ?? "").slice(0, 80)) },
    ...(isOfThread ? [] : [{ title: "Thread", key: "thread", cell: (/** @type {Run} */ run) => html`<a class="mono" title=${run.thread_id} href=${href(["d", name, "threads", run.thread_id])}>…${run.thread_id.slice(-12)}</a>` }]),
    { title: "Created", key: "created", cell: (/** @type {Run} */ run) => html`<${Ago} at=${run.created_at} />` },
    { title: "Took", key: "took", align: "right", cell: (/** @type {Run} */ run) => duration(tookOf(run)) },
    ...(can("run") ? [{ title: "", key: "actions", align: "right", cell: (/** @type {Run} */ run) => html`
      <span class="row-actions" onClick=${(/** @type {Event} */ event) => event.stopPropagation()}>
        ${isLive(run) ? html`<${CancelRun} name=${name} run=${run} onDone=${reload} isSmall />` : html`<${RetryRun} name=${name} run=${run} onDone=${reload} isSmall />`}
      </span>` }] : []),
  ];
  return html`<${Table} columns=${columns} rows=${runs} rowKey=${(/** @type {Run} */ run) => run.run_id} onRow=${(/** @type {Run} */ run) => navigate(link(run))} />`;
}

/** Why a run waits, or failed. @param {{run: Run}} props */
function Why({ run }) {
  if (run.queue) return html`<span class="waits">${queueInWords(run.queue)}</span>`;
  const reason = reasonOf(run);
  return reason && html`<span class=${run.status === "interrupted" ? "quiet" : "bad"} title=${plain(reason.slice(0, 2_000))}>${plain(reason.slice(0, 160))}</span>`;
}
