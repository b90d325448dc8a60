// What can be done with a run: cancel it, or run it again from its last checkpoint.

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
 * Cancels a run that waits or works: what it has written stays, or is taken back.
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
      notify(action === "rollback" ? "The run is taken back" : "The run is being cancelled");
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
    }
    setBusy("");
    setAsking(false);
    onDone();
  };
  const actions = html`
    <${Button} kind="plain" onClick=${() => setAsking(false)}>Let it run<//>
    <${Button} kind="danger" busy=${busy === "rollback"} onClick=${() => cancel("rollback")}>Cancel and take back<//>
    <${Button} kind="danger" busy=${busy === "interrupt"} onClick=${() => cancel("interrupt")}>Cancel<//>`;
  return html`
    <${Button} kind=${isSmall ? "plain" : "danger"} onClick=${() => setAsking(true)}>Cancel…<//>
    <${Dialog} title="Cancel this run?" open=${isAsking} onClose=${() => setAsking(false)} actions=${actions}>
      <p><strong>Cancel</strong> ends it where it is: its checkpoints stay, and it can be run again from the last one.</p>
      <p><strong>Cancel and take back</strong> removes the run and all it has written to the thread.</p>
    <//>`;
}

/**
 * Runs a failed run again from its last checkpoint; where the thread has moved on since, after asking.
 * @param {{name: string, run: Run, onDone: () => void, isSmall?: boolean}} props
 */
export function RetryRun({ name, run, onDone, isSmall }) {
  const [refusal, setRefusal] = useState("");
  const [busy, setBusy] = useState(false);
  if (!hasFailed(run)) return null;
  const retry = async (/** @type {boolean} */ force) => {
    setBusy(true);
    try {
      const made = await deployment(name).call("POST", `${pathOf(run)}/retry`, { body: { force } });
      setRefusal("");
      notify("Runs again: this is the new run");
      navigate(["d", name, "runs", made.thread_id, made.run_id]);
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
    <${Button} kind="plain" onClick=${() => setRefusal("")}>${isForkable ? "Leave it" : "Close"}<//>
    ${isForkable && html`<${Button} kind="primary" busy=${busy} onClick=${() => retry(true)}>Fork and run again<//>`}`;
  return html`
    <${Button} kind=${isSmall ? "plain" : "primary"} busy=${busy} onClick=${() => retry(false)} title="A new run goes on from the last checkpoint of this one">${isSmall ? "Again" : "Again from the last checkpoint"}<//>
    <${Dialog} title=${isForkable ? "The thread has moved on" : "It cannot run again now"} open=${refusal !== ""} onClose=${() => setRefusal("")} actions=${actions}>
      <p>${isForkable ? "Later runs or updates have changed the thread. Run again all the same, and the thread forks: the new run goes on from this run's last checkpoint, and what came later stays as a branch of its own." : refusal}</p>
    <//>`;
}
