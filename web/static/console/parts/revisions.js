// The revisions of a deployment with their actions, and the live build log of one.

import { html, useEffect, useState } from "../core/dom.js";
import { control } from "../core/api.js";
import { revisionName, short } from "../core/format.js";
import { setQuery } from "../core/router.js";
import { useResource } from "../core/resource.js";
import { can } from "../core/session.js";
import { Ago, Button, Empty, ErrorBox, Loading, Pager, Pill, Table, ask, notify } from "./index.js";
import { BuildLog } from "./build_log.js";

const PAGE = 20;
const FULL_HEIGHT = 24; // lines of a placeholder that moves what follows out of the window
const ENDS = new Set(["DEPLOYED", "CREATE_FAILED", "BUILD_FAILED", "DEPLOY_FAILED", "SKIPPED", "INTERRUPTED"]);

/** @param {{record: any, chosen?: string, onChange: () => void}} props */
export function Revisions({ record, chosen, onChange }) {
  const [offset, setOffset] = useState(0);
  const path = `/v2/deployments/${record.id}/revisions`;
  const { data, error, loading, reload } = useResource((signal) => control("GET", path, { query: { limit: PAGE, offset }, signal }), [path, offset], { every: 5000 });
  useEffect(reload, [record.latest_revision_id, record.latest_revision_status]);
  if (loading) return html`<${Loading} lines=${FULL_HEIGHT} />`;
  if (!data) return html`<${ErrorBox} error=${error} retry=${reload} />`;
  const rows = data.resources;
  const shown = rows.find((/** @type {any} */ row) => String(row.number) === chosen) ?? rows[0];
  const changed = () => {
    reload();
    onChange();
  };
  return html`
    <${Table} label="Revisions" rows=${rows} rowKey="id" columns=${columns(record, changed)} onRow=${choose} selected=${(/** @type {any} */ row) => row.id === shown?.id}
      empty=${html`<${Empty} title="No revisions yet" text="Deploy a project: runyard deploy DIRECTORY" />`} />
    <${Pager} offset=${offset} limit=${PAGE} count=${rows.length} onChange=${setOffset} />
    ${shown && html`<h2>Build log of ${revisionName(shown.number)}</h2><${BuildLog} key=${shown.id} deploymentId=${record.id} revision=${shown} hasEnded=${ENDS.has(shown.status)} onStatus=${changed} />`}`;
}

/** @param {any} row */
const choose = (row) => setQuery({ revision: row.number });

/** @param {any} record @param {() => void} changed @returns {import("./table.js").Column[]} */
function columns(record, changed) {
  return [
    { title: "Revision", key: "number", cell: (row) => html`<button type="button" class="plain" onClick=${() => choose(row)}>${revisionName(row.number)}</button>${row.id === record.active_revision_id && html` <span class="quiet">serves</span>`}${beside(record, row)}` },
    { title: "Status", key: "status", cell: (row) => html`<${Pill} status=${row.status} />` },
    { title: "Created", key: "created_at", cell: (row) => html`<${Ago} at=${row.created_at} />` },
    { title: "By", key: "by", cell: (row) => (row.created_by ? row.created_by.name || row.created_by.key_id : html`<span class="quiet">–</span>`) },
    { title: "Changes", key: "changes", cell: what },
    { title: "", key: "actions", align: "right", hidden: !can("deploy"), cell: (row) => html`<${Actions} record=${record} row=${row} changed=${changed} />` },
  ];
}

/** The share of a revision in a traffic split, and the name of its preview. @param {any} record @param {any} row */
function beside(record, row) {
  const share = record.traffic?.length > 1 && record.traffic.find((/** @type {any} */ one) => one.revision_id === row.id);
  const notes = [share && `${share.percent} %`, row.preview && `preview ${row.preview}`].filter(Boolean);
  return notes.length > 0 && html` <span class="quiet">${notes.join(" · ")}</span>`;
}

/** The changes of a revision: its source and its variables. @param {any} row */
function what(row) {
  const { source = {}, redeployed_number, variables_set, variables_unset } = row.changes ?? {};
  const changes = [];
  if (redeployed_number) changes.push(html`<span key="again">redeploy of ${revisionName(redeployed_number)}</span>`);
  else if (source.repo_commit_sha) changes.push(html`<span key="commit" title=${source.repo_url}>${source.repo_ref ? `${source.repo_ref} ` : ""}<code>${short(source.repo_commit_sha)}</code> ${source.commit_message?.split("\n")[0].slice(0, 100)}</span>`);
  else if (source.archive_digest) changes.push(html`<span key="archive" title=${source.archive_digest}>archive <code>${source.archive_digest.slice(0, 8)}</code></span>`);
  if (variables_set?.length) changes.push(html`<span key="set">set ${variables_set.slice(0, 5).join(", ")}${variables_set.length > 5 ? "…" : ""}</span>`);
  if (variables_unset?.length) changes.push(html`<span key="unset">unset ${variables_unset.slice(0, 5).join(", ")}</span>`);
  return changes.flatMap((part, at) => (at ? ["; ", part] : [part]));
}

/** @param {{record: any, row: any, changed: () => void}} props */
function Actions({ record, row, changed }) {
  const path = `/v2/deployments/${record.id}/revisions/${row.id}`;
  const name = revisionName(row.number);
  if (!ENDS.has(row.status)) return html`<${Button} kind="danger" onClick=${() => act(`Interrupt ${name}?`, "The serving revision is not affected.", "Interrupt", "danger", `${path}/interrupt`, `${name} was interrupted.`)}>Interrupt<//>`;
  const isActive = row.id === record.active_revision_id;
  if (row.status === "DEPLOYED" && !isActive) return html`<${Button} onClick=${() => act(`Roll back to ${name}?`, "A new revision gets its source and variables. Nothing is built.", "Roll back", "primary", `${path}/redeploy`, `A new revision rolls back to ${name}.`)}>Roll back<//>`;
  if (row.status === "SKIPPED" || row.status === "CREATE_FAILED") return null;
  return html`<${Button} onClick=${() => act(`Deploy ${name} again?`, "A new revision gets the same source and variables.", "Redeploy", "primary", `${path}/redeploy`, `A new revision redeploys ${name}.`)}>Redeploy<//>`;

  /** @param {string} title @param {string} text @param {string} action @param {"primary" | "danger"} kind @param {string} address @param {string} done */
  async function act(title, text, action, kind, address, done) {
    if (!(await ask({ title, text, action, kind }))) return;
    await control("POST", address);
    notify(done);
    setQuery({ revision: "" });
    changed();
  }
}
