// The replays of a deployment: revisions that were executed on past runs, each with its verdict.

import { control } from "../core/api.js";
import { useDeploymentResource } from "../core/deployments.js";
import { html, useState } from "../core/dom.js";
import { plain } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href, navigate } from "../core/router.js";
import { can } from "../core/session.js";
import { Criteria } from "../parts/criteria.js";
import { PageBar } from "../parts/filter_bar.js";
import { ReplayForm } from "../parts/replay_form.js";
import { outcomesInWords, replayName } from "../parts/replays.js";
import { Ago, Button, Empty, ErrorBox, Loading, Page, Pill, Table } from "../parts/index.js";

/** @typedef {import("../parts/replays.js").Replay} Replay */

const PAGE = 50;
const LOOK_AGAIN_MS = 3_000;

/** @param {Record<string, string>} params */
export const title = (params) => `Replays · ${params.name}`;

/** @param {{params: {name: string}, query: Record<string, string>}} props */
export default function ReplaysPage({ params: { name }, query }) {
  const offset = Number(query.offset) || 0;
  const [isStarting, setStarting] = useState(false);
  const found = useDeploymentResource({ name });
  const record = found.data;
  const { data, error } = useResource(async (signal) => {
    if (!record) return undefined;
    return (await control("GET", `/v2/deployments/${record.id}/replays`, { query: { limit: PAGE, offset }, signal })).resources;
  }, [record?.id, offset], { every: LOOK_AGAIN_MS });
  const start = can("deploy") && record && html`<${Button} kind="primary" onClick=${() => setStarting(true)}>New replay…<//>`;
  const empty = html`<${Empty} title="No replays yet" icon="replays" action=${start}
    text=${`A replay executes a revision on past runs and compares the results, before the revision serves. ${can("deploy") ? "The past runs stay as they are." : "It needs the role deploy to start one."}`} />`;
  if (!found.loading && !record) return html`<${Page} title="Replays" crumbs=${[{ label: name }]}>${found.error ? html`<${ErrorBox} error=${found.error} />` : html`<${Empty} title="There is no such deployment" text=${name} />`}<//>`;
  return html`
    <${Page} title="Replays" crumbs=${[{ label: name }]} actions=${data?.length > 0 && start}>
      <${ErrorBox} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && html`
        <${Table} label="Replays" columns=${columns(name)} rows=${data} rowKey="id" empty=${empty} onRow=${(/** @type {Replay} */ one) => navigate(["d", name, "replays", one.id])} />
        <${PageBar} offset=${offset} limit=${PAGE} found=${data.length} total=${null} />`}
      ${isStarting && html`<${ReplayForm} record=${record} onClose=${() => setStarting(false)} />`}
    <//>`;
}

/** @param {string} name of the deployment @returns {import("../parts/table.js").Column[]} */
const columns = (name) => [
  { title: "Replay", key: "replay", cell: (one) => html`<a class="name" title=${one.id} href=${href(["d", name, "replays", one.id])}>${replayName(one)}</a>` },
  { title: "Status", key: "status", cell: (one) => html`<${Pill} status=${one.verdict ?? one.status} title=${one.reason ?? undefined} />` },
  { title: "Cases", key: "cases", cell: (one) => outcomesInWords(one.counts) },
  { title: "Fails if", key: "rule", cell: (one) => (one.fail_on ? html`<code>${plain(one.fail_on)}</code>` : html`<span class="quiet">no rule</span>`) },
  { title: "Past runs", key: "filters", priority: 3, cell: (one) => html`<${Criteria} name=${name} where=${one.where} />` },
  { title: "Started", key: "started", cell: (one) => html`<${Ago} at=${one.created_at} />` },
  { title: "By", key: "by", cell: (one) => (one.created_by ? plain(one.created_by.name || one.created_by.key_id) : html`<span class="quiet">–</span>`) },
];
