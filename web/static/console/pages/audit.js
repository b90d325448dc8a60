// The audit log: who changed what in the organization, when, and from which address.

import { control } from "../core/api.js";
import { html } from "../core/dom.js";
import { text } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { entryInWords } from "../parts/audit.js";
import { Ago, Button, Empty, ErrorBox, Field, Loading, Page, Pager, Table } from "../parts/index.js";

const PAGE = 50;
const LOOK_AGAIN_MS = 10_000;
/** Objects of actions, with the role that sees them. @type {[string, string, string][]} */
const OBJECTS = [
  ["deployment", "Deployments", "read"], ["revision", "Revisions", "read"], ["secrets", "Variables", "read"], ["traffic", "Traffic", "read"], ["preview", "Previews", "read"], ["runs", "Bulk operations", "read"], ["replay", "Replays", "read"], ["question", "Questions", "read"], ["upload", "Uploads", "read"],
  ["provider", "OAuth providers", "read"], ["key", "API keys", "admin"], ["user", "Sign-ins", "admin"], ["organization", "Organizations", "admin"], ["worker", "Workers", "read"],
];

export const title = () => "Audit log";

/** @param {{query: Record<string, string>}} props */
export default function AuditPage({ query }) {
  const { action, key, since, until, offset = "0" } = query;
  const search = { limit: PAGE, offset, action, key_id: key, since: since && startOf(since), until: until && startOf(until, 1) };
  const sent = Object.fromEntries(Object.entries(search).filter(([, value]) => value));
  const found = useResource((signal) => control("GET", "/v2/audit", { query: sent, signal }), [JSON.stringify(sent)], { every: LOOK_AGAIN_MS });
  const entries = found.data?.resources;
  const isFiltered = Boolean(action || key || since || until);
  const options = [{ value: "", label: "Everything" }, ...OBJECTS.filter(([, , role]) => can(role)).map(([value, label]) => ({ value, label }))];
  const showAll = () => setQuery({ action: null, key: null, since: null, until: null, offset: null });

  return html`
    <${Page} title="Audit log">
      <div class="form-row">
        <${Field} label="What"><select value=${action ?? ""} onChange=${(/** @type {any} */ event) => setQuery({ action: event.currentTarget.value, offset: null })}>
          ${options.map(({ value, label }) => html`<option key=${value} value=${value}>${label}</option>`)}
        </select><//>
        <${Field} label="From"><input type="date" value=${since ?? ""} max=${until} onChange=${(/** @type {any} */ event) => setQuery({ since: event.currentTarget.value, offset: null })} /><//>
        <${Field} label="Until"><input type="date" value=${until ?? ""} min=${since} onChange=${(/** @type {any} */ event) => setQuery({ until: event.currentTarget.value, offset: null })} /><//>
        ${key && html`<${Button} onClick=${() => setQuery({ key: null, offset: null })}>By ${text(key, 40)} ×<//>`}
      </div>
      <${ErrorBox} error=${found.error} retry=${found.reload} />
      ${!entries && !found.error && html`<${Loading} />`}
      ${entries && html`
        <${Table} label="Audit log" rows=${entries} rowKey="id" columns=${columns()}
          empty=${isFiltered
            ? html`<${Empty} title="No entry matches" text="Nothing that matches the filters was changed in this time." action=${html`<${Button} onClick=${showAll}>Show all<//>`} />`
            : html`<${Empty} title="No entries yet" text="Changes of deployments, traffic, variables and keys are listed here, with who made them." />`} />
        <${Pager} offset=${Number(offset)} limit=${PAGE} count=${entries.length} onChange=${(/** @type {number} */ to) => setQuery({ offset: to || null })} />`}
    <//>`;
}

/** The start of a day of the reader's time zone, as an ISO time. @param {string} day @param {number} [later] days to add */
function startOf(day, later = 0) {
  const at = new Date(`${day}T00:00`);
  at.setDate(at.getDate() + later);
  return at.toISOString();
}

const columns = () => [
  { title: "When", key: "at", cell: (/** @type {any} */ entry) => html`<${Ago} at=${entry.at} />` },
  { title: "Who", key: "actor", cell: actorOf },
  { title: "What", key: "subject", cell: (/** @type {any} */ entry) => html`${subjectOf(entry)} ${text(entryInWords(entry), 200)}` },
  ...(can("admin") ? [{ title: "Address", key: "address", cell: (/** @type {any} */ entry) => entry.address ?? html`<span class="quiet">none</span>` }] : []),
];

/** @param {import("../parts/audit.js").Entry} entry */
function actorOf({ actor }) {
  if (!actor) return html`<span class="quiet">the service</span>`;
  return html`<a class="in-text" href=${href("/audit", { key: actor.key_id })} title=${`All entries of ${actor.key_id}`}>${text(actor.name, 60)}</a>`;
}

/** @param {import("../parts/audit.js").Entry} entry */
function subjectOf({ deployment_id: id, subject, action }) {
  const isThere = id && action !== "deployment.deleted";
  return isThere ? html`<a class="in-text" href=${href(["deployments", id])}>${text(subject, 80)}</a>` : html`<b>${text(subject, 80)}</b>`;
}
