// The graphs of a deployment, from the assistants that the service created for them.

import { deployment } from "../core/api.js";
import { useResource } from "../core/resource.js";

const MOST = 1000;

/** @param {string} name @returns {{graphs: string[], error: any}} */
export function useGraphs(name) {
  const body = { metadata: { created_by: "system" }, select: ["graph_id"], limit: MOST, sort_by: "graph_id", sort_order: "asc" };
  const { data, error } = useResource((signal) => deployment(name).call("POST", "/assistants/search", { body, signal }), [name]);
  return { graphs: [...new Set(/** @type {string[]} */ ((data ?? []).map((/** @type {any} */ one) => one.graph_id)))], error };
}
