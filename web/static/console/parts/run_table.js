// A table of runs: name, status, reason of a wait or a failure, thread, times, and the actions on each run.

import { canRunAt } from "../core/deployments.js";
import { html } from "../core/dom.js";
import { duration, plain, runName, short } from "../core/format.js";
import { useAssistants, useTitles } from "../core/names.js";
import { href, navigate } from "../core/router.js";
import { CancelRun, RetryRun } from "./run_actions.js";
import { isLive, queueInWords, reasonOf, tookOf } from "./runs.js";
import { Ago, Id, RunStatus, Table } from "./index.js";

/** @typedef {Record<string, any>} Run */

/**
 * `chosen` holds the ids of the selected runs; without it no run can be selected. The title of a thread is a column unless all are of one.
 * @param {{name: string, runs: Run[], reload: () => void, isOfThread?: boolean, chosen?: Set<string>, onChoose?: (run: Run, isChosen: boolean) => void}} props
 */
export function RunTable({ name, runs, reload, isOfThread = false, chosen, onChoose }) {
  const assistants = useAssistants(name);
  const titles = useTitles(name, isOfThread ? [] : runs.map((run) => run.thread_id));
  const nameOf = (/** @type {Run} */ run) => runName(run, assistants.get(run.assistant_id));
  const link = (/** @type {Run} */ run) => ["d", name, "runs", run.thread_id, run.run_id];
  const columns = [
    ...(chosen && onChoose ? [{
      title: "", key: "choose",
      cell: (/** @type {Run} */ run) => isLive(run) && html`<input type="checkbox" aria-label=${`Choose run ${nameOf(run)}, ${short(run.run_id)}`} checked=${chosen.has(run.run_id)}
        onClick=${(/** @type {Event} */ event) => event.stopPropagation()}
        onChange=${(/** @type {Event} */ event) => onChoose(run, /** @type {HTMLInputElement} */ (event.currentTarget).checked)} />`,
    }] : []),
    { title: "Run", key: "run", primary: true, cell: (/** @type {Run} */ run) => html`<span class="name-row"><a class="name" title=${run.run_id} href=${href(link(run))}>${nameOf(run)}</a><${Id} value=${run.run_id} /></span>` },
    { title: "Status", key: "status", cell: (/** @type {Run} */ run) => html`<${RunStatus} run=${run} />` },
    { title: "Why", key: "why", cell: (/** @type {Run} */ run) => html`<${Why} run=${run} />` },
    ...(isOfThread ? [] : [{
      title: "Thread", key: "thread",
      cell: (/** @type {Run} */ run) => html`<a class="name beside-reasons" title=${run.thread_id} href=${href(["d", name, "threads", run.thread_id])}>${titles.get(run.thread_id) ?? short(run.thread_id)}</a>`,
    }]),
    { title: "Created", key: "created", cell: (/** @type {Run} */ run) => html`<${Ago} at=${run.created_at} />` },
    { title: "Took", key: "took", align: "right", cell: (/** @type {Run} */ run) => duration(tookOf(run)) },
    ...(canRunAt(name) ? [{ title: "", key: "actions", align: "right", cell: (/** @type {Run} */ run) => html`
      <span class="row-actions" onClick=${(/** @type {Event} */ event) => event.stopPropagation()}>
        ${isLive(run) ? html`<${CancelRun} name=${name} run=${run} onDone=${reload} isSmall />` : html`<${RetryRun} name=${name} run=${run} onDone=${reload} isSmall />`}
      </span>` }] : []),
  ];
  return html`<${Table} columns=${columns} rows=${runs} rowKey=${(/** @type {Run} */ run) => run.run_id} onRow=${(/** @type {Run} */ run) => navigate(link(run))} />`;
}

/** The reason why a run waits or did not succeed. @param {{run: Run}} props */
function Why({ run }) {
  if (run.queue) return html`<span class="waits why">${queueInWords(run.queue)}</span>`;
  const reason = reasonOf(run);
  return reason && html`<span class=${run.status === "interrupted" ? "quiet why" : "bad why"} title=${plain(reason.slice(0, 2_000))}>${plain(reason.slice(0, 160))}</span>`;
}
