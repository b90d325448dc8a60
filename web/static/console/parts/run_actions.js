// Actions on a run: cancel it, or retry it from its last checkpoint.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { navigate } from "../core/router.js";
import { hasFailed, isLive } from "./runs.js";
import { Button, Dialog, notify } from "./index.js";

/** @typedef {Record<string, any>} Run */

const CONFLICT = 409;

/** @param {Run} run */
const pathOf = (run) => `/threads/${run.thread_id}/runs/${run.run_id}`;

/**
 * Cancels a live run. Its checkpoints are kept, or rolled back.
 * @param {{name: string, run: Run, onDone: () => void, isSmall?: boolean}} props
 */
export function CancelRun({ name, run, onDone, isSmall }) {
  const [isAsking, setAsking] = useState(false);
  const [busy, setBusy] = useState("");
  if (!isLive(run)) return null;
  const cancel = async (/** @type {string} */ action) => {
    setBusy(action);
    try {
      await deployment(name).call("POST", `${pathOf(run)}/cancel`, { query: { action } });
      notify(action === "rollback" ? "The run is being rolled back" : "The run is being cancelled");
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
    }
    setBusy("");
    setAsking(false);
    onDone();
  };
  const actions = html`
    <${Button} kind="plain" onClick=${() => setAsking(false)}>Keep it running<//>
    <${Button} kind="danger" busy=${busy === "rollback"} onClick=${() => cancel("rollback")}>Cancel and roll back<//>
    <${Button} kind="danger" busy=${busy === "interrupt"} onClick=${() => cancel("interrupt")}>Cancel<//>`;
  return html`
    <${Button} kind=${isSmall ? "plain" : "danger"} onClick=${() => setAsking(true)}>Cancel…<//>
    <${Dialog} title="Cancel this run?" open=${isAsking} onClose=${() => setAsking(false)} actions=${actions}>
      <p><strong>Cancel</strong> stops the run where it is. Its checkpoints are kept, and it can be retried from the last one.</p>
      <p><strong>Cancel and roll back</strong> deletes the run and its checkpoints from the thread.</p>
    <//>`;
}

/**
 * Retries a failed run from its last checkpoint. If the thread has changed since, asks before it forks the thread.
 * @param {{name: string, run: Run, onDone: () => void, isSmall?: boolean}} props
 */
export function RetryRun({ name, run, onDone, isSmall }) {
  const [refusal, setRefusal] = useState("");
  const [busy, setBusy] = useState(false);
  if (!hasFailed(run)) return null;
  const retry = async (/** @type {boolean} */ force) => {
    setBusy(true);
    try {
      const created = await deployment(name).call("POST", `${pathOf(run)}/retry`, { body: { force } });
      setRefusal("");
      notify("A new run was started. This page shows it.");
      navigate(["d", name, "runs", created.thread_id, created.run_id]);
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      if (status === CONFLICT && !force) setRefusal(message);
      else notify(message, "error");
      onDone();
    }
    setBusy(false);
  };
  const isForkable = refusal.includes("force");
  const actions = html`
    <${Button} kind="plain" onClick=${() => setRefusal("")}>${isForkable ? "Cancel" : "Close"}<//>
    ${isForkable && html`<${Button} kind="primary" busy=${busy} onClick=${() => retry(true)}>Fork and retry<//>`}`;
  return html`
    <${Button} kind=${isSmall ? "plain" : "primary"} busy=${busy} onClick=${() => retry(false)} title="A new run continues from the last checkpoint of this run">${isSmall ? "Retry" : "Retry from the last checkpoint"}<//>
    <${Dialog} title=${isForkable ? "The thread has changed" : "The run cannot be retried now"} open=${refusal !== ""} onClose=${() => setRefusal("")} actions=${actions}>
      <p>${isForkable ? "Later runs or updates have changed the thread. A retry forks it: the new run continues from the last checkpoint of this run, and the later checkpoints stay as another branch." : refusal}</p>
    <//>`;
}
