/**
 * The run, query or request on whose behalf code runs. It reaches nodes, timers, output and the handlers of uncaught errors.
 *
 * @typedef {object} Current
 * @property {string} id of the run or query
 * @property {import("./checkpoints/run_checkpoints.mjs").RunCheckpoints} [checkpoints] of a run or query
 * @property {boolean} [isRun] whether it is a run
 * @property {boolean} [isOver] whether the run has sent DONE
 * @property {import("./replays/replay.mjs").Replay} [replay] of a replayed run
 * @property {object} [user] the user's document
 */

import { AsyncLocalStorage } from "node:async_hooks";

import { NOBODY } from "./frames.mjs";

/** @type {AsyncLocalStorage<Current>} */
export const storage = new AsyncLocalStorage();

/** Return the current run or query; undefined outside of any. */
export function current() {
  return storage.getStore();
}

/** Return the checkpoints of the current run or query. Called by the saver, which nothing else calls. */
export function currentCheckpoints() {
  const run = /** @type {Required<Current>} */ (storage.getStore());
  return run.checkpoints;
}

/** Return the id for records of code that runs now. A node that outlives its run has none. */
export function currentId() {
  const run = storage.getStore();
  return run === undefined || run.isOver ? NOBODY : run.id;
}
