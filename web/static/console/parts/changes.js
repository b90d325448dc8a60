// Recorded changes of deployments, traffic and keys, in words.

import { servedInWords } from "./standing.js";

/**
 * @typedef {{id: number, at: string, kind: string, deployment_id: string | null, subject: string, changed_by: {key_id: string, name: string} | null, detail: Record<string, any>}} Change
 */

/** @type {Record<string, string>} */
const FIELDS = {
  display_name: "display name", pool: "pool", limits: "limits", source_config: "source", inbox: "rules for questions", name: "name", role: "role", expires_at: "expiry",
  max_concurrent_runs: "limit of runs", max_tokens_per_day: "tokens per day", max_run_tokens: "tokens per run",
};

/** @type {Record<string, string>} */
const KINDS_OF_FAILURE = { BUILD_FAILED: "build failed", DEPLOY_FAILED: "deploy failed", CREATE_FAILED: "creation failed" };

/** A change in words, which follow the name of its subject. @param {Change} change @returns {string} */
export function changeInWords({ kind, detail }) {
  const revision = `v${detail.revision_number ?? "?"}`;
  const where = detail.preview ? ` as preview ${detail.preview}` : "";
  const fields = (detail.fields ?? []).map((/** @type {string} */ name) => FIELDS[name] ?? name).join(", ");
  switch (kind) {
    case "deployment.created": return "deployment created";
    case "deployment.changed": return `settings changed: ${fields}`;
    case "deployment.deleted": return "deployment deleted";
    case "revision.deployed": return `${revision} deployed${where}`;
    case "revision.failed": return `${revision} ${KINDS_OF_FAILURE[detail.status] ?? "failed"}${where}`;
    case "revision.interrupted": return `${revision} interrupted`;
    case "traffic.promoted": return `${revision} promoted to all traffic`;
    case "traffic.split": return `traffic split: ${servedInWords(detail.traffic, detail.traffic?.[0]?.revision_number)}`;
    case "traffic.aborted": return "traffic split aborted";
    case "preview.deleted": return `preview ${detail.preview} deleted`;
    case "key.created": return `key created, role ${detail.role}`;
    case "key.changed": return `key changed: ${fields}`;
    case "key.revoked": return "key revoked";
    default: return kind;
  }
}

/** @param {Change} change @returns {"good" | "bad" | "warn" | "busy"} */
export function kindOfChange({ kind }) {
  if (kind === "revision.failed" || kind === "deployment.deleted") return "bad";
  if (kind === "revision.deployed" || kind === "traffic.promoted") return "good";
  return kind === "revision.interrupted" || kind === "key.revoked" ? "warn" : "busy";
}
