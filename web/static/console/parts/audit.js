// Entries of the audit log in words.

import { servedInWords } from "./standing.js";

/**
 * @typedef {{id: number, at: string, action: string, deployment_id: string | null, subject: string, actor: {key_id: string, name: string} | null, address: string | null, detail: Record<string, any>}} Entry
 */

/** @type {Record<string, string>} */
const FIELDS = {
  display_name: "display name", pool: "pool", limits: "limits", source_config: "source", inbox: "rules for questions", name: "name", role: "role", expires_at: "expiry",
  max_concurrent_runs: "limit of runs", max_tokens_per_day: "tokens per day", max_run_tokens: "tokens per run", max_cost_per_day: "cost per day", max_run_cost: "cost per run", budget_webhook: "webhook of budgets",
};

/** @type {Record<string, string>} */
const KINDS_OF_FAILURE = { BUILD_FAILED: "build failed", DEPLOY_FAILED: "deploy failed", CREATE_FAILED: "creation failed" };

/** An entry in words, which follow the name of its subject. @param {Pick<Entry, "action" | "detail">} entry @returns {string} */
export function entryInWords({ action, detail }) {
  const revision = `v${detail.revision_number ?? "?"}`;
  const unreplayed = detail.without_replay ? ", without a replay as it has served" : "";
  const where = detail.preview ? ` as preview ${detail.preview}` : "";
  const fields = (detail.fields ?? []).map((/** @type {string} */ name) => FIELDS[name] ?? name).join(", ");
  switch (action) {
    case "deployment.created": return "deployment created";
    case "deployment.changed": return `settings changed: ${fields}`;
    case "deployment.deleted": return "deployment deleted";
    case "revision.created": return `${revision} requested${where}${detail.redeployed_number ? `, a redeploy of v${detail.redeployed_number}` : ""}${unreplayed}`;
    case "revision.deployed": return `${revision} deployed${where}`;
    case "revision.failed": return `${revision} ${KINDS_OF_FAILURE[detail.status] ?? "failed"}${where}`;
    case "revision.interrupted": return `${revision} interrupted`;
    case "secrets.changed": return `variables of ${revision}: ${variablesInWords(detail)}`;
    case "traffic.promoted": return `${revision} promoted to all traffic${unreplayed}`;
    case "traffic.split": return `traffic split: ${servedInWords(detail.traffic, detail.traffic?.[0]?.revision_number)}`;
    case "traffic.aborted": return "traffic split aborted";
    case "preview.deleted": return `preview ${detail.preview} deleted`;
    case "runs.bulk_started": return `${detail.operation} of ${detail.runs} ${detail.runs === 1 ? "run" : "runs"} started`;
    case "runs.bulk_cancelled": return `${detail.operation} of runs stopped`;
    case "replay.created": return `replay of ${detail.sample} past runs on ${revision} started`;
    case "replay.cancelled": return "replay cancelled";
    case "replay.deleted": return "replay deleted";
    case "question.answered": return "question answered";
    case "question.cancelled": return "question cancelled";
    case "question.link_created": return `link to a question created${detail.label ? ` for ${detail.label}` : ""}`;
    case "question.link_revoked": return "link to a question revoked";
    case "upload.opened": return "upload of a source opened";
    case "provider.created": return "OAuth provider created";
    case "provider.changed": return `OAuth provider changed: ${fields}`;
    case "provider.deleted": return "OAuth provider deleted";
    case "provider.authorized": return "access of the OAuth provider granted";
    case "provider.tokens_revoked": return `${detail.tokens} ${detail.tokens === 1 ? "token" : "tokens"} revoked`;
    case "key.created": return `key created, role ${detail.role}`;
    case "key.changed": return `key changed: ${fields}`;
    case "key.revoked": return "key revoked";
    case "key.refused": return `key refused: ${detail.reason}`;
    case "user.signed_in": return `signed in, role ${detail.role}`;
    case "user.signed_out": return "signed out";
    case "organization.created": return "organization created";
    case "organization.renamed": return `organization renamed, before: ${detail.before}`;
    case "organization.deleted": return "organization deleted";
    case "worker.drained": return "worker drained";
    case "worker.resumed": return "drain of the worker ended";
    default: return action;
  }
}

/** @param {Record<string, any>} detail @returns {string} */
function variablesInWords({ variables_set: set = [], variables_unset: unset = [] }) {
  return [set.length ? `${set.join(", ")} set` : "", unset.length ? `${unset.join(", ")} removed` : ""].filter(Boolean).join("; ");
}

/** @param {Pick<Entry, "action">} entry @returns {"good" | "bad" | "warn" | "busy"} */
export function markOf({ action }) {
  if (action === "revision.failed" || action.endsWith(".deleted")) return "bad";
  if (action === "revision.deployed" || action === "traffic.promoted") return "good";
  return action === "revision.interrupted" || action === "key.revoked" ? "warn" : "busy";
}
