// What there is: each deployment with how it does, the pools, and the last hour, day or week.

import { html } from "../core/dom.js";
import { control } from "../core/api.js";
import { href } from "../core/router.js";
import { useResource } from "../core/resource.js";
import { Empty, ErrorBox, Loading, Page, Pill, Table } from "../parts/index.js";

export const title = () => "Overview";

export default function OverviewPage() {
  const { data, error, loading, reload } = useResource((signal) => control("GET", "/v2/deployments", { query: { limit: 100 }, signal }), [], { every: 5000 });
  return html`<${Page} title="Overview">
    <${ErrorBox} error=${error} retry=${reload} />
    ${loading ? html`<${Loading} />` : data && html`<${Table} label="Deployments" rows=${data.resources} rowKey="id" columns=${COLUMNS} empty=${NONE} />`}
  <//>`;
}

const NONE = html`<${Empty} title="Nothing is deployed yet" text="Deploy a project from its directory: runyard deploy DIRECTORY" />`;

const COLUMNS = [
  { title: "Deployment", key: "name", cell: (/** @type {any} */ row) => html`<a href=${href(["deployments", row.id])}>${row.name}</a>` },
  { title: "Status", key: "status", cell: (/** @type {any} */ row) => html`<${Pill} status=${row.status} />` },
];
