// The store of a deployment: the tree of namespaces, the items below one of them, and one item in a dialog.

import { deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { text } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { parse } from "../parts/json_editor.js";
import { Ago, Button, Empty, ErrorBox, Loading, Page, Pager, SearchBox, Table } from "../parts/index.js";
import { ItemDialog, ItemForm, removeItem } from "../parts/store_item.js";

const PAGE = 25;
const AT_ONCE = 100; // namespaces of one level
const RIGHT = /** @type {const} */ ("right");

export const title = (/** @type {any} */ params) => `Store · ${params.name}`;

/** The labels of a namespace, which contain no dots. @param {string | undefined} written @returns {string[]} */
const labelsOf = (written) => (written ? written.split(".") : []);

/** The labels and the key of the item in the address; null if there is none. @param {string | undefined} written @returns {string[] | null} */
function parseItem(written) {
  const { value } = parse(written ?? "");
  return Array.isArray(value) && value.length > 1 && value.every((part) => typeof part === "string") ? value : null;
}

/** @param {{params: {name: string}, query: Record<string, string>}} props */
export default function StorePage({ params: { name }, query }) {
  const [round, setRound] = useState(0); // increased by each change, to load again
  const [edited, setEdited] = useState(/** @type {{item?: any} | null} */ (null));
  const changed = () => setRound(round + 1);
  const namespace = labelsOf(query.ns);
  const make = can("run") && html`<${Button} kind="primary" onClick=${() => setEdited({})}>New item<//>`;
  return html`
    <${Page} title="Store" crumbs=${[{ label: name }]} actions=${make}>
      <div class="store">
        <nav class="store-tree" aria-label="Namespaces">
          <a href=${href(["d", name, "store"])} aria-current=${namespace.length ? undefined : "true"}>All namespaces</a>
          <${Level} name=${name} prefix=${[]} chosen=${namespace} round=${round} />
        </nav>
        <${Items} name=${name} namespace=${namespace} query=${query} round=${round} make=${make} edit=${(/** @type {any} */ item) => setEdited({ item })} changed=${changed} />
      </div>
      ${edited && html`<${ItemForm} name=${name} item=${edited.item} namespace=${namespace} onClose=${() => setEdited(null)} onDone=${changed} />`}
    <//>`;
}

/** The namespaces one label below a prefix. @param {{name: string, prefix: string[], chosen: string[], round: number}} props */
function Level({ name, prefix, chosen, round }) {
  const [limit, setLimit] = useState(AT_ONCE);
  const body = { ...(prefix.length && { prefix }), max_depth: prefix.length + 1, limit: limit + 1 };
  const found = useResource((signal) => deployment(name).call("POST", "/store/namespaces", { body, signal }), [name, prefix.join("."), limit, round]);
  if (found.error) return html`<${ErrorBox} error=${found.error} retry=${found.reload} />`;
  if (!found.data) return null;
  const all = found.data.namespaces.filter((/** @type {string[]} */ one) => one.length > prefix.length);
  const shown = all.slice(0, limit);
  if (!shown.length) return prefix.length ? html`<p class="quiet">No namespaces below</p>` : null;
  return html`<ul>
    ${shown.map((/** @type {string[]} */ one) => html`<${Branch} key=${one[one.length - 1]} name=${name} namespace=${one} chosen=${chosen} round=${round} />`)}
    ${all.length > limit && html`<li><button type="button" class="plain" onClick=${() => setLimit(limit + AT_ONCE)}>more…</button></li>`}
  </ul>`;
}

/** @param {{name: string, namespace: string[], chosen: string[], round: number}} props */
function Branch({ name, namespace, chosen, round }) {
  const label = namespace[namespace.length - 1];
  const isAbove = namespace.every((one, at) => chosen[at] === one);
  const [isOpen, setOpen] = useState(isAbove);
  const isChosen = isAbove && chosen.length === namespace.length;
  return html`<li>
    <span class="branch">
      <button type="button" class="plain" aria-expanded=${String(isOpen)} aria-label="Namespaces below ${label}" onClick=${() => setOpen(!isOpen)}>${isOpen ? "▾" : "▸"}</button>
      <a href=${href(["d", name, "store"], { ns: namespace.join(".") })} title=${label} aria-current=${isChosen ? "true" : undefined} onClick=${() => setOpen(true)}>${text(label, 60)}</a>
    </span>
    ${isOpen && html`<${Level} name=${name} prefix=${namespace} chosen=${chosen} round=${round} />`}
  </li>`;
}

/** @param {{name: string, namespace: string[], query: Record<string, string>, round: number, make: any, edit: (item: any) => void, changed: () => void}} props */
function Items({ name, namespace, query, round, make, edit, changed }) {
  const offset = Number(query.offset ?? 0);
  const filter = parse(query.filter ?? "");
  const isFilter = filter.value === undefined || (typeof filter.value === "object" && filter.value !== null && !Array.isArray(filter.value));
  const wrong = filter.error ?? (isFilter ? null : 'A filter must be a JSON object: {"field": value}');
  const body = { namespace_prefix: namespace, limit: PAGE, offset, refresh_ttl: false, ...(filter.value && isFilter && { filter: filter.value }), ...(query.meaning && { query: query.meaning }) };
  const found = useResource(
    (signal) => (wrong ? Promise.resolve({ items: [] }) : deployment(name).call("POST", "/store/items/search", { body, signal })),
    [name, JSON.stringify(body), wrong, round],
  );
  const items = found.data?.items;
  const shown = parseItem(query.item);
  const open = (/** @type {any} */ item) => setQuery({ item: JSON.stringify([...item.namespace, item.key]) }, { push: true });
  const remove = async (/** @type {any} */ item) => {
    if (await removeItem(name, item)) changed();
  };
  return html`
    <section class="store-items" aria-label="Items">
      <h2>${namespace.length ? html`<code>${text(namespace.join("."), 200)}</code>` : "All items"}</h2>
      <div class="filters">
        <${SearchBox} label="Search by meaning" value=${query.meaning ?? ""} delay=${600} onInput=${(/** @type {string} */ meaning) => setQuery({ meaning: meaning.trim(), offset: null })} />
        <${SearchBox} label="Filter by values, as JSON" placeholder=${'Values: {"color": "red"}'} value=${query.filter ?? ""} onInput=${(/** @type {string} */ text_) => setQuery({ filter: text_.trim(), offset: null })} />
      </div>
      ${wrong && html`<p class="bad" role="alert">${wrong}</p>`}
      <${SearchRefused} error=${found.error} meaning=${query.meaning} retry=${found.reload} />
      ${!items && !found.error && html`<${Loading} />`}
      ${items && !wrong && html`
        <${Table} label="Items" rows=${items} rowKey=${(/** @type {any} */ item) => JSON.stringify([item.namespace, item.key])} onRow=${open}
          columns=${columns(namespace, Boolean(query.meaning), open)} empty=${emptyFor(query, make)} />
        <${Pager} offset=${offset} limit=${PAGE} count=${items.length} onChange=${(/** @type {number} */ to) => setQuery({ offset: to || null })} />`}
      ${shown && html`<${ItemDialog} name=${name} namespace=${shown.slice(0, -1)} key_=${shown[shown.length - 1]} round=${round} edit=${edit} remove=${remove} />`}
    </section>`;
}

/** The error of a search. If the store has no index, explains how to configure one. @param {{error: any, meaning?: string, retry: () => void}} props */
function SearchRefused({ error, meaning, retry }) {
  if (!error) return null;
  if (!meaning || !String(error.detail).includes("index")) return html`<${ErrorBox} error=${error} retry=${retry} />`;
  return html`<${Empty} title="This store has no index" text=${'A search by meaning needs an index. Configure it in langgraph.json: "store": {"index": {"dims": …, "embed": …}}.'}
    action=${html`<${Button} onClick=${() => setQuery({ meaning: null })}>Show all items<//>`} />`;
}

/** @param {Record<string, string>} query @param {any} make */
function emptyFor(query, make) {
  if (query.meaning || query.filter) return html`<${Empty} title="No item matches" action=${html`<${Button} onClick=${() => setQuery({ meaning: null, filter: null, offset: null })}>Show all items<//>`} />`;
  if (query.offset) return html`<${Empty} title="This page is empty" />`;
  return html`<${Empty} title="No items yet" text="Graphs keep data that outlives a thread in the store, with runtime.store or get_store(). They also read the items that you create here." action=${make} />`;
}

/** @param {string[]} namespace @param {boolean} isScored @param {(item: any) => void} open */
const columns = (namespace, isScored, open) => [
  { title: "Score", key: "score", align: RIGHT, hidden: !isScored, cell: (/** @type {any} */ item) => (item.score === null ? html`<span class="quiet">none</span>` : item.score.toFixed(3)) },
  { title: "Namespace", key: "namespace", cell: (/** @type {any} */ item) => html`<code class="cut" title=${item.namespace.join(".")}>${text(item.namespace.slice(namespace.length).join(".") || "·", 40)}</code>` },
  { title: "Key", key: "key", cell: (/** @type {any} */ item) => html`<button type="button" class="plain cut" onClick=${() => open(item)} title=${text(item.key, 500)}>${text(item.key, 40) || '""'}</button>` },
  { title: "Value", key: "value", cell: (/** @type {any} */ item) => html`<code class="quiet cut">${text(preview(item.value), 80)}</code>` },
  { title: "Changed", key: "changed", cell: (/** @type {any} */ item) => html`<${Ago} at=${item.updated_at} />` },
  { title: "Expires", key: "expires", cell: (/** @type {any} */ item) => (item.expires_at ? html`<${Ago} at=${item.expires_at} />` : html`<span class="quiet">never</span>`) },
];

/** The beginning of a value as JSON. Long texts are cut first, so that a large value costs little. @param {any} value */
function preview(value) {
  return JSON.stringify(value, (_name, part) => (typeof part === "string" && part.length > 200 ? part.slice(0, 200) : part)) ?? "";
}
