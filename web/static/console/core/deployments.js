// Records of deployments that pages share, by name or by id.

import { control, isBench, replayedAt } from "./api.js";
import { signal } from "./dom.js";
import { useResource } from "./resource.js";
import { can } from "./session.js";

/** The record of the deployment that the current page belongs to; the navigation loads it. @type {import("../../vendor/signals.js").Signal<any | null>} */
export const currentDeployment = signal(null);

/**
 * The record of the deployment that the address names, by `id` or by `name`; null while it is not known.
 * @param {{id?: string, name?: string}} params
 * @returns {any | null}
 */
export function useDeployment({ id, name }) {
  return useDeploymentResource({ id, name }).data ?? null;
}

/** The deployment's record as a resource, with its error and `reload`. @param {{id?: string, name?: string}} params @param {{every?: number}} options */
export function useDeploymentResource({ id, name }, options = {}) {
  return useResource((signal) => load({ id, name }, signal), [id, name], options);
}

/** @param {{id?: string, name?: string}} params @param {AbortSignal} [signal] */
async function load({ id, name }, signal) {
  if (name) return (await control("GET", "/v2/deployments", { query: { name, limit: 1 }, signal })).resources[0] ?? null;
  return id ? control("GET", `/v2/deployments/${encodeURIComponent(id)}`, { signal }) : null;
}

/** Whether the caller may create and change things at a deployment's address. @param {string} name */
export const canRunAt = (name) => can("run") && !isBench(name);

/** The name of the deployment whose runs are replayed at a bench; null for other deployments, and while it is not known. @param {string | undefined} name @returns {string | null} */
export function useReplayed(name) {
  return useResource(async () => (name && isBench(name) ? (await replayedAt(name))?.name : null), [name]).data ?? null;
}
