// Rules of the inbox page, without any markup: filters, equal questions, times of a snooze, drafts.

import { filterOf } from "./filters.js";
import { short } from "../core/format.js";

/**
 * @typedef {"open"|"snoozed"|"answered"|"expired"|"closed"} Status
 * @typedef {object} Question a record of `/v2/inbox`
 * @property {string} id
 * @property {string} deployment_id
 * @property {string} deployment_name
 * @property {string} thread_id
 * @property {string} thread_title
 * @property {string|null} run_id
 * @property {string|null} assistant_id
 * @property {string|null} assistant_name
 * @property {string|null} graph_id
 * @property {string} interrupt_id
 * @property {"interrupt"|"breakpoint"} kind
 * @property {any} value
 * @property {boolean} [is_value_left_out] the list has no large values
 * @property {any} [response_schema]
 * @property {string} asked_at
 * @property {string|null} asked_by
 * @property {Status} status
 * @property {string|null} assignee
 * @property {string|null} snoozed_until
 * @property {string|null} expires_at
 * @property {any} on_expiry
 * @property {string|null} answered_at
 * @property {string|null} answered_by
 * @property {string|null} answered_from
 * @property {any} answer
 * @property {string|null} answer_run_id
 * @property {Record<string, any>} metadata
 */

const HOUR_MS = 3_600_000;
const MORNING_HOUR = 9;

export const STATUSES = [
  { value: "", label: "Open" },
  { value: "snoozed", label: "Snoozed" },
  { value: "answered", label: "Answered" },
  { value: "expired", label: "Expired" },
  { value: "closed", label: "Closed" },
  { value: "all", label: "All" },
];

export const AGES = [
  { value: "", label: "Any age" },
  { value: "after-1", label: "Last hour" },
  { value: "after-24", label: "Last day" },
  { value: "after-168", label: "Last week" },
  { value: "before-1", label: "Older than 1 hour" },
  { value: "before-24", label: "Older than 1 day" },
  { value: "before-168", label: "Older than 1 week" },
];

/**
 * The query of `GET /v2/inbox` for the filters in the page's address, and the error of a filter that is invalid.
 * @param {Record<string, string>} query
 * @param {number} [now] milliseconds
 * @returns {{filters: Record<string, string>, error: string | null}}
 */
export function filtersOf(query, now = Date.now()) {
  /** @type {Record<string, string>} */
  const filters = {};
  for (const name of ["status", "deployment", "assignee"]) if (query[name]) filters[name] = query[name];
  if (query.deployment && query.assistant_id) filters.assistant_id = query.assistant_id; // the choice of assistants is that of a deployment
  const age = /^(after|before)-(\d{1,5})$/.exec(query.age ?? "");
  if (age) filters[`asked_${age[1]}`] = new Date(now - Number(age[2]) * HOUR_MS).toISOString();
  try {
    const metadata = filterOf(query.metadata);
    if (metadata) filters.metadata = JSON.stringify(metadata);
  } catch (error) {
    return { filters, error: /** @type {Error} */ (error).message };
  }
  return { filters, error: null };
}

/** Return whether a question can still be answered. @param {{status: Status}} question */
export const isAnswerable = ({ status }) => status === "open" || status === "snoozed";

/** The verb for the end of an open question's time; a question may stay open after it. @param {string} at @param {number} [now] milliseconds */
export const expiryVerb = (at, now = Date.now()) => (new Date(at).getTime() <= now ? "expired" : "expires");

/** The title of a question's thread; the end of its id if it has no title. @param {{thread_title: string, thread_id: string}} question */
export const titleOf = ({ thread_title: title, thread_id: id }) => title || `Thread ${short(id)}`;

/** A text that is the same for questions that one answer fits. @param {Question} question */
export const formKey = ({ id, kind, value, is_value_left_out: isLeftOut, response_schema: schema }) => JSON.stringify([kind, value, schema ?? null, isLeftOut ? id : null]);

/** Group questions that one answer fits, in the order of the first of each group. @param {Question[]} questions @returns {Question[][]} */
export function groupsOf(questions) {
  /** @type {Map<string, Question[]>} */
  const groups = new Map();
  for (const question of questions) {
    const key = formKey(question);
    groups.set(key, [...(groups.get(key) ?? []), question]);
  }
  return [...groups.values()];
}

/**
 * The id `step` places after an id in a list, at most the first or the last. An unknown id counts as before the first.
 * @param {string[]} ids @param {string | undefined} id @param {number} step
 * @returns {string | undefined}
 */
export function neighbour(ids, id, step) {
  const at = ids.indexOf(id ?? "");
  if (at < 0) return ids[0];
  return ids[Math.min(Math.max(at + step, 0), ids.length - 1)];
}

/** The id to show after a question has left the list: the next one, else the one before. @param {string[]} ids @param {string} id */
export function afterAnswer(ids, id) {
  const at = ids.indexOf(id);
  return at < 0 ? ids[0] : ids[at + 1] ?? ids[at - 1];
}

/**
 * Times that a question can be snoozed until.
 * @param {Date} now
 * @returns {{label: string, at: Date}[]}
 */
export function snoozeTimes(now) {
  const morning = (/** @type {number} */ days) => new Date(now.getFullYear(), now.getMonth(), now.getDate() + days, MORNING_HOUR);
  return [
    { label: "1 hour", at: new Date(now.getTime() + HOUR_MS) },
    { label: "4 hours", at: new Date(now.getTime() + 4 * HOUR_MS) },
    { label: `Tomorrow, ${MORNING_HOUR}:00`, at: morning(1) },
    { label: `Monday, ${MORNING_HOUR}:00`, at: morning(((8 - now.getDay()) % 7) || 7) },
  ];
}

/** A time as `<input type="datetime-local">` has it. @param {Date} at */
export function localInput(at) {
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:${two(at.getMinutes())}`;
}

/** What a form's draft holds, as text; empty if nothing was entered. @param {Record<string, any> | undefined} draft */
export function draftText(draft) {
  if (!draft) return "";
  if (draft.view !== "json" && draft.view !== "form" && draft.text) return String(draft.text);
  const decisions = draft.decisions?.filter((/** @type {any} */ decision) => decision.choice);
  const value = decisions?.length ? decisions : draft.value;
  return value === undefined || value === null ? "" : JSON.stringify(value, null, 2);
}

/**
 * The state of a link for one answer.
 * @param {{expires_at: string, revoked_at?: string | null, used_at?: string | null}} link
 * @param {boolean} isOpen whether the link's question can still be answered
 * @param {number} [now] milliseconds
 */
export function linkState({ expires_at: expires, revoked_at: revoked, used_at: used }, isOpen, now = Date.now()) {
  if (used) return "used";
  if (revoked) return "revoked";
  if (!isOpen) return "closed";
  return new Date(expires).getTime() <= now ? "expired" : "active";
}

/** The name under which the caller is assigned to questions. @param {any} me the record of `/v2/me` */
export const nameOf = (me) => me?.user?.name || me?.key?.name || me?.key?.id || "me";
