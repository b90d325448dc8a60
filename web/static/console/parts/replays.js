// The record of a replay and of its cases in words and figures.

import { count, duration, text } from "../core/format.js";

/** @typedef {Record<string, any>} Replay */
/** @typedef {Record<string, any>} Case */

export const OUTCOMES = /** @type {const} */ (["same", "changed", "diverged", "failed", "skipped"]);
/** What each outcome means. @type {Record<string, string>} */
export const MEANINGS = {
  same: "The final values and the status are equal",
  changed: "The final values or the status differ",
  diverged: "A tool was called with arguments that are not recorded",
  failed: "The case ended with an error, or could not be scored",
  skipped: "The case was not executed",
};

/** Whether a replay has not ended. @param {Replay} replay */
export const isInProgress = ({ status }) => status === "preparing" || status === "running";

/** @param {Replay} replay */
export const replayName = ({ revision_number: number, preview, counts }) =>
  `${number ? `v${number}` : "A removed revision"}${preview ? ` (${preview})` : ""} on ${count(counts.total)} past ${counts.total === 1 ? "run" : "runs"}`;

/** The status of a case: its outcome, or whether it runs. @param {Case} one */
export const statusOfCase = ({ outcome, case_run_id }) => outcome ?? (case_run_id ? "running" : "waits");

/** The number of ended cases and their outcomes. @param {Record<string, number>} counts */
export function outcomesInWords(counts) {
  const ended = counts.total - counts.waiting - counts.running;
  const outcomes = OUTCOMES.filter((name) => counts[name]).map((name) => `${count(counts[name])} ${name}`);
  return `${count(ended)} of ${count(counts.total)}${outcomes.length ? `: ${outcomes.join(", ")}` : ""}`;
}

/**
 * The verdict in a sentence, and its kind.
 * @param {Replay} replay
 * @returns {{kind: "good" | "bad" | "warn" | "busy" | "", title: string, text: string}}
 */
export function verdictInWords(replay) {
  const { verdict, fail_on: rule, status, reason, summary } = replay;
  const rules = summary?.rules ?? [];
  const met = rules.filter((/** @type {any} */ each) => each.failed).length;
  const ended = reason ? ` ${sentence(reason)}` : "";
  if (isInProgress(replay)) return { kind: "busy", title: status === "preparing" ? "Preparing" : "Running", text: rule ? "The rule is judged when all cases have ended." : "The replay only reports: it has no rule." };
  if (verdict === "passed") return { kind: "good", title: "Passed", text: `${rules.length === 1 ? "The condition of the rule is not met." : "No condition of the rule is met."}${ended}` };
  if (verdict === "failed") return { kind: "bad", title: "Failed", text: `${met} of ${rules.length} ${rules.length === 1 ? "condition is" : "conditions are"} met.${ended}` };
  if (status === "failed") return { kind: "bad", title: "Not completed", text: sentence(reason ?? "The replay could not continue") };
  if (status === "stopped") return { kind: "warn", title: "Stopped at a bound", text: `${sentence(reason ?? "A bound is reached")}${rule ? " The rule is not judged." : ""}` };
  if (status === "cancelled") return { kind: "warn", title: "Cancelled", text: `Cases that had ended keep their results.${rule ? " The rule is not judged." : ""}` };
  if (rule) return { kind: "warn", title: "Not judged", text: whyNotJudged(replay) };
  return { kind: "", title: "Report", text: "The replay has no rule, so it only reports." };
}

/** @param {Replay} replay */
function whyNotJudged({ counts, summary }) {
  if (!counts.total) return "No past run matches the filters.";
  if (counts.skipped === counts.total) return "All cases were skipped.";
  const unknown = (summary?.rules ?? []).filter((/** @type {any} */ each) => each.failed === null).map((/** @type {any} */ each) => each.rule);
  return unknown.length ? `There are no figures for ${unknown.map((/** @type {string} */ rule) => text(rule, 60)).join(", ")}.` : "Not all cases were executed.";
}

/** @param {string} words */
const sentence = (words) => `${words.charAt(0).toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;

/** A figure with the unit of its name. @param {string} metric @param {number | null | undefined} value */
export function figureInWords(metric, value) {
  if (value === null || value === undefined) return "–";
  if (metric === "cost") return `$${value === 0 ? "0" : Math.abs(value) < 1 ? Number(value.toPrecision(3)) : value.toFixed(2)}`;
  if (metric === "duration_seconds" || metric === "p50" || metric === "p95") return duration(value);
  if (metric.startsWith("score")) return String(Number(value.toFixed(3)));
  return count(Number(value.toFixed(1)));
}

/** The change from one figure to another: `+20 %`, `−0.05`; empty if one is not known. @param {string} metric @param {number | null | undefined} original @param {number | null | undefined} replay */
export function changeInWords(metric, original, replay) {
  if (original === null || original === undefined || replay === null || replay === undefined) return "";
  const difference = replay - original;
  const sign = difference > 0 ? "+" : difference < 0 ? "−" : "±";
  if (metric.startsWith("score") || original === 0) return difference === 0 ? "±0" : `${sign}${figureInWords(metric, Math.abs(difference))}`;
  const part = Math.abs(difference / original) * 100;
  return `${part < 0.05 ? "±" : sign}${part < 10 ? Number(part.toFixed(1)) : count(Math.round(part))} %`;
}

/** The metric of a condition: `cost` in `cost>+20%`. @param {string} rule */
export const metricOf = (rule) => (/^[^\s<>=]+/.exec(rule.trim()) ?? [rule])[0];

/** Where a case differs first, or why it has no result. @param {Case} one */
export function differenceInWords({ outcome, reason, comparison }) {
  if (reason) return text(reason, 300);
  const first = comparison?.first_difference;
  const tool = comparison?.unrecorded_tool ?? null;
  if (outcome === "diverged" && tool) return `calls ${text(tool, 60)} with other arguments`;
  if (!first) return "";
  return [first.node && `node ${text(first.node, 80)}`, first.field && `field ${text(first.field, 120)}`].filter(Boolean).join(", ");
}
