// A choice among the revisions of a deployment that can execute runs.

import { control } from "../core/api.js";
import { html } from "../core/dom.js";
import { moment, revisionName } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { Field } from "./index.js";

const MOST_REVISIONS = 100;

/**
 * The deployed revisions of a deployment, newest first; undefined while they load.
 * @param {string | undefined} id of the deployment @returns {any[] | undefined}
 */
export function useDeployedRevisions(id) {
  const { data } = useResource(async (signal) => {
    if (!id) return undefined;
    return (await control("GET", `/v2/deployments/${id}/revisions`, { query: { status: "DEPLOYED", limit: MOST_REVISIONS }, signal })).resources;
  }, [id]);
  return data;
}

/**
 * `value` is the id of a revision; empty for the one that `otherwise` names.
 * @param {{revisions: any[] | undefined, value: string, otherwise: string, hint?: any, error?: any, onChange: (id: string) => void}} props
 */
export function RevisionChoice({ revisions, value, otherwise, hint, error, onChange }) {
  return html`<${Field} label="Revision" hint=${hint} error=${error}>
    <select value=${value} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.value)}>
      <option value="">${otherwise}</option>
      ${(revisions ?? []).map((one) => html`<option key=${one.id} value=${one.id} selected=${one.id === value}>${revisionName(one.number)}${one.preview ? `, preview ${one.preview}` : ""}, ${moment(one.created_at)}</option>`)}
    </select><//>`;
}
