// Bulk operations: retry or cancel all runs that match a search. A dry run counts them before the operation starts.

import { deployment } from "../core/api.js";
import { useDeployment } from "../core/deployments.js";
import { html, useState } from "../core/dom.js";
import { count, runName } from "../core/format.js";
import { useAssistants } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, navigate } from "../core/router.js";
import { Criteria } from "./criteria.js";
import { FormDialog, useForm } from "./form_dialog.js";
import { RevisionChoice, useDeployedRevisions } from "./revision_choice.js";
import { LIVE, UNSUCCESSFUL } from "./runs.js";
import { Button, Check, ErrorBox, Id, Loading, RunStatus, TextField, notify } from "./index.js";

/** @typedef {"retry" | "cancel"} Action */
/** @typedef {{status: string[]} & Record<string, any>} Where the filters of a search of runs */

const DEFAULT_RATE = "10";
const MOST_RATE = 100; // runs per second
/** The statuses of the runs that an action can handle. @type {Record<Action, Set<string>>} */
const FITTING = { retry: UNSUCCESSFUL, cancel: LIVE };
const VERBS = { retry: "Retry", cancel: "Cancel" };

/** @param {number} n */
const runs = (n) => `${count(n)} ${n === 1 ? "run" : "runs"}`;

/** @param {{action: Action, total: number}} operation */
export const operationName = ({ action, total }) => `${action === "retry" ? "Retry" : "Cancellation"} of ${runs(total)}`;

/** The number of runs that an operation has handled, and with which outcome. @param {{done: number, skipped: number, failed: number, total: number}} operation */
export function progressInWords({ done, skipped, failed, total }) {
  const outcomes = [done && `${count(done)} done`, skipped && `${count(skipped)} skipped`, failed && `${count(failed)} failed`].filter(Boolean);
  return `${count(done + skipped + failed)} of ${count(total)}${outcomes.length ? `: ${outcomes.join(", ")}` : ""}`;
}

/** Buttons for the actions that can handle runs of the chosen statuses. @param {{name: string, whereOf: () => Where}} props */
export function StartBulk({ name, whereOf }) {
  const [draft, setDraft] = useState(/** @type {{action: Action, where: Where} | null} */ (null));
  const { status } = whereOf();
  const actions = /** @type {Action[]} */ (Object.keys(FITTING)).filter((action) => status.some((one) => FITTING[action].has(one)));
  // The period of a filter ends when the dialog opens, so that the operation handles the runs that were counted.
  const begin = (/** @type {Action} */ action) => setDraft({ action, where: { ...whereOf(), status: status.filter((one) => FITTING[action].has(one)) } });
  return html`
    ${actions.map((action) => html`<${Button} key=${action} onClick=${() => begin(action)}>${VERBS[action]} matching runs…<//>`)}
    ${draft && html`<${StartDialog} name=${name} action=${draft.action} where=${draft.where} onClose=${() => setDraft(null)} />`}`;
}

/** @param {{name: string, action: Action, where: Where, onClose: () => void}} props */
function StartDialog({ name, action, where, onClose }) {
  const form = useForm({ rate: DEFAULT_RATE, revision_id: "", force: false });
  const { rate, revision_id, force } = form.values;
  const isRetry = action === "retry";
  const revisions = useDeployedRevisions(useDeployment({ name })?.id);
  const { data, error } = useResource((signal) => deployment(name).call("POST", "/runs/bulk", { body: { action, where, dry_run: true }, signal }), []);
  const start = async () => {
    const body = { action, where, rate: Number(rate), ...(isRetry && { force, ...(revision_id && { revision_id }) }) };
    const operation = await deployment(name).call("POST", "/runs/bulk", { body });
    notify(`${operationName(operation)} started`);
    navigate(["d", name, "runs", "bulk", operation.id]);
  };
  const canStart = data && data.count > 0 && !data.is_more;
  return html`
    <${FormDialog} title=${`${VERBS[action]} matching runs`} label=${canStart ? `${VERBS[action]} ${runs(data.count)}` : VERBS[action]} danger=${!isRetry} disabled=${!canStart} onClose=${onClose} onSubmit=${start}>
      ${(/** @type {(field: string) => string | undefined} */ errorOf) => html`
        <p><${Criteria} name=${name} where=${where} /></p>
        <${ErrorBox} error=${error} />
        ${!data && !error && html`<${Loading} shape="text" />`}
        ${data && html`<${Preview} name=${name} preview=${data} />`}
        <${TextField} label="Runs per second" type="number" min="1" max=${MOST_RATE} step="any" required hint="A low rate spares the models and tools that the runs call" error=${errorOf("rate")} ...${form.bind("rate")} />
        ${isRetry && html`
          <${RevisionChoice} revisions=${revisions} value=${revision_id} otherwise="The one that serves" error=${errorOf("revision_id")} onChange=${(/** @type {string} */ id) => form.set({ revision_id: id })} />
          <${Check} label="Also retry runs whose threads have changed since: the threads are forked" checked=${force} onChange=${(/** @type {boolean} */ is) => form.set({ force: is })} />`}
        ${!isRetry && html`<p class="hint">Running runs stop where they are, and keep their checkpoints. Waiting runs end without being executed.</p>`}`}
    <//>`;
}

/** The result of a dry run. @param {{name: string, preview: {count: number, is_more: boolean, examples: any[]}}} props */
function Preview({ name, preview: { count: found, is_more, examples } }) {
  const assistants = useAssistants(name);
  if (!found) return html`<p role="status">No run matches.</p>`;
  return html`
    <p role="status">${is_more ? html`More than <strong>${runs(found)}</strong> match. Narrow the filters: an operation handles at most ${runs(found)}.` : html`<strong>${runs(found)}</strong> ${found === 1 ? "matches" : "match"}.`}</p>
    ${found > examples.length && html`<p class="quiet">The first that are handled:</p>`}
    <ul class="plain-list bulk-examples">${examples.map((run) => html`
      <li key=${run.run_id}><a href=${href(["d", name, "runs", run.thread_id, run.run_id])}>${runName(run, assistants.get(run.assistant_id))}</a> <${Id} value=${run.run_id} /> <${RunStatus} run=${run} /></li>`)}
    </ul>`;
}
