// Runs without success, grouped by reason, from the answer of GET /v2/metrics/failures.

import { count } from "../core/format.js";

/**
 * @typedef {{deployment_id: string, deployment: string, status: string, error: string | null, runs: number, last_ended_at: string}} Reason
 * @typedef {{from: string, until: string, reasons: Reason[], unrecorded: {deployment_id: string, status: string, runs: number}[], incomplete: string[]}} Failures
 */

/** @type {Record<string, string>} */
const WORDS = { timeout: "Timed out", interrupted: "Cancelled", error: "Error without a class" };

/** @param {{status: string, error: string | null}} reason */
export const reasonInWords = ({ status, error }) => (status === "error" && error ? error : (WORDS[status] ?? status));

/** Cancelled runs are listed, but do not count as failed. @param {{status: string}} reason */
export const isFailure = ({ status }) => status !== "interrupted";

/** Failures before cancelled runs, each with the most runs first. @param {Reason[]} reasons @returns {Reason[]} */
export const sorted = (reasons) => [...reasons].sort((one, other) => Number(isFailure(other)) - Number(isFailure(one)) || other.runs - one.runs);

/** The filters that find exactly the runs of a reason. @param {Failures} failures @param {Reason} reason */
export const filtersOf = ({ from, until }, { status, error }) => ({ status, error, since: from, until });

/**
 * The failed runs of a deployment that have a record, and those that do not. Null if more have failed than were counted.
 * @param {Failures} failures @param {string} deploymentId
 * @returns {{recorded: number, unrecorded: number} | null}
 */
export function failedOf({ reasons, unrecorded, incomplete }, deploymentId) {
  if (incomplete.includes(deploymentId)) return null;
  const sum = (/** @type {{deployment_id: string, status: string, runs: number}[]} */ rows) =>
    rows.reduce((total, row) => total + (row.deployment_id === deploymentId && isFailure(row) ? row.runs : 0), 0);
  return { recorded: sum(reasons), unrecorded: sum(unrecorded) };
}

/**
 * A sentence about the runs that no list shows. Empty if there are none.
 * @param {Failures} failures
 * @returns {string}
 */
export function unrecordedInWords({ unrecorded }) {
  const sum = (/** @type {boolean} */ isFailed) => unrecorded.reduce((total, row) => total + (isFailure(row) === isFailed ? row.runs : 0), 0);
  const failed = sum(true), cancelled = sum(false);
  if (!failed && !cancelled) return "";
  const parts = [failed && `${count(failed)} failed`, cancelled && `${count(cancelled)} cancelled`].filter(Boolean).join(" and ");
  const isOne = failed + cancelled === 1;
  return `${parts} ${isOne ? "run" : "runs"} left no record: ${isOne ? "it was" : "they were"} stateless, rolled back, or deleted with ${isOne ? "its thread" : "their threads"}.`;
}
