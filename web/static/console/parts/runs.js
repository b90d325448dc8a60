// The record of a run in words: why it waits, why it did not succeed, and how long it took.

import { between } from "../core/format.js";

/** @typedef {Record<string, any>} Run */

export const LIVE = new Set(["pending", "running"]);
export const UNSUCCESSFUL = new Set(["error", "timeout", "interrupted"]);

/** @param {Run} run */
export const isLive = (run) => LIVE.has(run.status);

/** @param {Run} run */
export const hasFailed = (run) => UNSUCCESSFUL.has(run.status);

/**
 * The reason why a run waits, and the number of runs before it.
 * @param {{position: number | null, waiting_seconds: number, reason: string}} queue
 */
export function queueInWords({ position, reason }) {
  const of = {
    "earlier run of its thread": "an earlier run of its thread",
    "deployment limit": "the deployment's limit of runs at once",
    "key limit": "the key's limit of runs at once",
    "runners are full": "a slot: the runners are full",
    "not picked up yet": "a runner to pick it up",
  }[reason];
  const said = of ? `waits for ${of}` : reason.startsWith("no runner of pool") ? `${reason}: start one` : reason;
  return position && position > 1 ? `${said}, ${position - 1} before it` : position === 1 && reason !== "not picked up yet" ? `${said}, next in line` : said;
}

/** @type {Record<string, string>} */
const WAITS_FOR = { answer: "waits for an answer", resume: "waits to be resumed" };

/** What a run that stopped at a question or a breakpoint waits for, in words; empty if it waits for no person. @param {Run} run @returns {string} */
export const waitsInWords = (run) => (run.waits_for ? (WAITS_FOR[run.waits_for] ?? `waits for ${run.waits_for}`) : "");

/**
 * The reason why a run did not succeed; empty if there is none.
 * @param {Run} run
 * @returns {string}
 */
export function reasonOf(run) {
  if (run.error) return `${run.error.error}: ${run.error.message}`;
  if (run.cancel_reason) return run.cancel_reason;
  if (run.status === "timeout") return "The run exceeded its time limit";
  return "";
}

/**
 * The duration of a run in seconds, until now while it runs; null if it has not started.
 * @param {Run} run
 * @param {number} [now] milliseconds
 * @returns {number | null}
 */
export function tookOf(run, now = Date.now()) {
  if (run.status === "pending") return null;
  if (run.status === "running") return run.started_at ? Math.max((now - Date.parse(run.started_at)) / 1000, 0) : null;
  if (run.started_at && run.ended_at) return between(run.started_at, run.ended_at);
  return run.started_at === undefined ? between(run.created_at, run.updated_at) : null;
}
