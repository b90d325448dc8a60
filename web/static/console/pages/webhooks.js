// The webhook deliveries of a deployment: pending, delivered and failed.

import { deployment } from "../core/api.js";
import { html } from "../core/dom.js";
import { short, text } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { Ago, Button, Dialog, Empty, ErrorBox, Id, Loading, Page, Pager, Pill, SearchBox, Select, Table, notify } from "../parts/index.js";

const PAGE = 50;
const LOOK_AGAIN_MS = 4000;
const STATUSES = ["pending", "delivered", "failed"];

export const title = (/** @type {any} */ params) => `Webhooks · ${params.name}`;

/** @param {{params: {name: string}, query: Record<string, string>}} props */
export default function WebhooksPage({ params: { name }, query }) {
  const offset = Number(query.offset ?? 0);
  const body = { limit: PAGE, offset, ...(query.status && { status: query.status }), ...(query.run && { run_id: query.run }) };
  const found = useResource(
    (signal) => deployment(name).call("POST", "/webhooks/search", { body, signal }),
    [name, JSON.stringify(body)], { every: LOOK_AGAIN_MS },
  );
  const shown = found.data?.find((/** @type {any} */ one) => one.delivery_id === query.delivery);
  const isFiltered = Boolean(query.status || query.run);

  return html`
    <${Page} title="Webhooks" crumbs=${[{ label: name }]}>
      <div class="filters">
        <${Select} label="Status" value=${query.status ?? ""} options=${[{ value: "", label: "Any status" }, ...STATUSES.map((status) => ({ value: status, label: status }))]}
          onChange=${(/** @type {string} */ status) => setQuery({ status, offset: null })} />
        <${SearchBox} label="Run" placeholder="Id of a run" value=${query.run ?? ""} onInput=${(/** @type {string} */ run) => setQuery({ run: run.trim(), offset: null })} />
      </div>
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      ${!found.data && !found.error && html`<${Loading} />`}
      ${found.data && html`
        <${Table} rows=${found.data} rowKey="delivery_id" label="Webhooks" columns=${columns(name, found.reload)}
          onRow=${(/** @type {any} */ one) => setQuery({ delivery: one.delivery_id })}
          empty=${isFiltered
            ? html`<${Empty} title="No delivery matches" text="No delivery has this status and belongs to this run." action=${html`<${Button} onClick=${() => setQuery({ status: null, run: null, offset: null })}>Show all<//>`} />`
            : html`<${Empty} title="No webhooks yet" text=${'When a run or cron has "webhook": "https://…", the service calls that address after each run. Deliveries are kept for seven days.'} />`} />
        <${Pager} offset=${offset} limit=${PAGE} count=${found.data.length} onChange=${(/** @type {number} */ to) => setQuery({ offset: to || null })} />`}
      ${shown && html`<${Delivery} of=${shown} name=${name} onClose=${() => setQuery({ delivery: null })} onDone=${found.reload} />`}
    <//>`;
}

/** @param {string} name @param {() => void} reload */
const columns = (name, reload) => [
  { title: "Status", key: "status", cell: (/** @type {any} */ one) => html`<${Pill} status=${one.status} />` },
  { title: "Address", key: "url", cell: (/** @type {any} */ one) => html`<span title=${text(one.url, 500)}>${text(one.url, 60)}</span>` },
  { title: "Run", key: "run", cell: (/** @type {any} */ one) => html`<${RunLink} name=${name} of=${one} />` },
  { title: "Attempts", key: "attempts", align: /** @type {"right"} */ ("right"), cell: (/** @type {any} */ one) => one.attempts },
  { title: "Answer", key: "answer", cell: answerOf },
  { title: "Created", key: "created", cell: (/** @type {any} */ one) => html`<${Ago} at=${one.created_at} />` },
  { title: "Next or delivered", key: "next", cell: whenOf },
  { title: "", key: "actions", align: /** @type {"right"} */ ("right"), cell: (/** @type {any} */ one) => one.status !== "delivered" && html`<${Retry} name=${name} of=${one} onDone=${reload} />` },
];

/** @param {any} one */
function answerOf(one) {
  if (!one.response_status && !one.error) return html`<span class="quiet">none yet</span>`;
  return html`${one.response_status ?? ""} ${one.error && html`<span class="bad" title=${text(one.error, 500)}>${text(one.error, 60)}</span>`}`;
}

/** @param {any} one */
function whenOf(one) {
  if (one.status === "delivered") return html`<${Ago} at=${one.delivered_at} />`;
  if (one.status === "pending" && one.next_attempt_at) return html`next <${Ago} at=${one.next_attempt_at} />`;
  return html`<span class="quiet">no further attempts</span>`;
}

/** @param {{name: string, of: any}} props */
function RunLink({ name, of: one }) {
  if (!one.thread_id) return html`<${Id} value=${one.run_id} />`;
  return html`<a href=${href(["d", name, "runs", one.thread_id, one.run_id])} title=${one.run_id}>Run ${short(one.run_id)}</a>`;
}

/** @param {{name: string, of: any, onDone: () => void}} props */
function Retry({ name, of: one, onDone }) {
  if (!can("run")) return null;
  const retry = async () => {
    await deployment(name).call("POST", `/webhooks/${one.delivery_id}/retry`);
    notify("The webhook is being sent again.");
    onDone();
  };
  return html`<${Button} kind="plain" onClick=${retry} label="Retry ${text(one.url, 60)}">Retry<//>`;
}

/** @param {{of: any, name: string, onClose: () => void, onDone: () => void}} props */
function Delivery({ of: one, name, onClose, onDone }) {
  return html`
    <${Dialog} open=${true} title="Webhook" onClose=${onClose} actions=${html`<${Retry} name=${name} of=${one} onDone=${onDone} /><${Button} onClick=${onClose}>Close<//>`}>
      <dl class="facts">
        <dt>Status</dt><dd><${Pill} status=${one.status} /></dd>
        <dt>Address</dt><dd class="wrap">${text(one.url, 2000)}</dd>
        <dt>Run</dt><dd><${RunLink} name=${name} of=${one} /></dd>
        <dt>Id</dt><dd><${Id} value=${one.delivery_id} /></dd>
        <dt>Attempts</dt><dd>${one.attempts}</dd>
        <dt>Answer</dt><dd>${one.response_status ?? "none"}</dd>
        ${one.error && html`<dt>Error</dt><dd class="wrap bad">${text(one.error, 5000)}</dd>`}
        <dt>Created</dt><dd><${Ago} at=${one.created_at} /></dd>
        <dt>Next or delivered</dt><dd>${whenOf(one)}</dd>
      </dl>
    <//>`;
}
