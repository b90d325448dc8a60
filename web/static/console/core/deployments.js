// Records of deployments that pages share, by name or by id.

import { control } from "./api.js";
import { useResource } from "./resource.js";

/**
 * The record of the deployment in the address, by `id` or by `name`; null while it loads or if there is none.
 * @param {{id?: string, name?: string}} params
 * @returns {any | null}
 */
export function useDeployment({ id, name }) {
  return useDeploymentResource({ id, name }).data ?? null;
}

/** The record of a deployment as a resource, with its error and a function that loads it again. @param {{id?: string, name?: string}} params @param {{every?: number}} options */
export function useDeploymentResource({ id, name }, options = {}) {
  return useResource((signal) => load({ id, name }, signal), [id, name], options);
}

/** @param {{id?: string, name?: string}} params @param {AbortSignal} [signal] */
async function load({ id, name }, signal) {
  if (name) return (await control("GET", "/v2/deployments", { query: { name, limit: 1 }, signal })).resources[0] ?? null;
  return id ? control("GET", `/v2/deployments/${encodeURIComponent(id)}`, { signal }) : null;
}
