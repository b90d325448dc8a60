// Runs, tokens and their cost, by day, deployment, model, key, user and node.

import { html } from "../core/dom.js";
import { control } from "../core/api.js";
import { NOTHING, count, money } from "../core/format.js";
import { href, setQuery } from "../core/router.js";
import { useResource } from "../core/resource.js";
import { Button, Chart, Check, Empty, ErrorBox, Field, Loading, Page, Table } from "../parts/index.js";
import { Tile } from "../parts/tiles.js";

const DAY_MS = 86_400_000;
const DAYS = 30, MOST_DAYS = 1000;
const DIMENSIONS = /** @type {const} */ (["day", "deployment", "model", "key", "user", "node"]);
const LABELS = { day: "Day", deployment: "Deployment", model: "Model", key: "API key", user: "User", node: "Node" };
const EXCLUDED = { user: ["key", "node"], node: ["key", "user"], key: ["user", "node"] }; // dimensions that cannot be combined

export const title = () => "Usage";

/** @param {{query: Record<string, string>}} props */
export default function UsagePage({ query }) {
  const from = query.from || dayOf(Date.now() - DAYS * DAY_MS), until = query.until || dayOf(Date.now());
  const by = DIMENSIONS.filter((name) => (query.by ?? "deployment").split(",").includes(name));
  const span = { from, until };
  const table = useUsage({ ...span, by: by.join(",") });
  const days = useUsage({ ...span, by: "day" });
  const error = table.error ?? days.error;
  return html`
    <${Page} title="Usage" actions=${html`<${Button} onClick=${() => download({ ...span, by: by.join(","), format: "csv" })}>Download as CSV<//>`}>
      <div class="form-row usage-filters">
        <${Field} label="From"><input type="date" value=${from} max=${until} onChange=${(/** @type {any} */ event) => setQuery({ from: event.currentTarget.value })} /><//>
        <${Field} label="Until"><input type="date" value=${until} min=${from} onChange=${(/** @type {any} */ event) => setQuery({ until: event.currentTarget.value })} /><//>
        <fieldset><legend class="label">Rows by</legend>
          ${DIMENSIONS.map((name) => html`<${Check} key=${name} label=${LABELS[name]} checked=${by.includes(name)} onChange=${(/** @type {boolean} */ isOn) => choose(name, isOn)} />`)}
        </fieldset>
      </div>
      <${ErrorBox} error=${error} retry=${table.reload} />
      ${days.rows && days.rows.length > 0 && html`<${Days} rows=${days.rows} from=${from} until=${until} />`}
      ${table.loading && html`<${Loading} />`}
      ${table.rows && html`<${Table} label="Usage" rows=${by.includes("day") ? table.rows : mostFirst(table.rows)} rowKey=${(/** @type {any} */ row) => [...by.map((name) => row[idOf(name)]), row.is_rest].join("|")} columns=${columns(by)} empty=${NONE} />`}
    <//>`;

  /** @param {typeof DIMENSIONS[number]} name @param {boolean} isOn */
  function choose(name, isOn) {
    const excluded = (isOn && /** @type {Record<string, string[]>} */ (EXCLUDED)[name]) || [];
    const chosen = DIMENSIONS.filter((one) => (one === name ? isOn : by.includes(one) && !excluded.includes(one)));
    if (chosen.length) setQuery({ by: chosen.join(",") });
  }
}

const NONE = html`<${Empty} title="No usage on these days" text="Tokens are counted when a run ends, as the models report them." />`;

/** Rows by their tokens. The sum of the others comes last. @param {any[]} rows */
const mostFirst = (rows) => [...rows].sort((a, b) => Number(a.is_rest ?? false) - Number(b.is_rest ?? false) || b.total_tokens - a.total_tokens);

/** @param {Record<string, string>} query */
function useUsage(query) {
  const { data, ...rest } = useResource((signal) => control("GET", "/v2/usage", { query, signal }), [JSON.stringify(query)]);
  return { rows: data?.usage, ...rest };
}

/** @param {{rows: any[], from: string, until: string}} props */
function Days({ rows, from, until }) {
  const known = new Map(rows.map((row) => [row.day, row]));
  const days = Array.from({ length: Math.min(MOST_DAYS, (Date.parse(until) - Date.parse(from)) / DAY_MS + 1) }, (_, at) => dayOf(Date.parse(from) + at * DAY_MS));
  const of = (/** @type {string} */ name) => days.map((day) => [day, known.get(day)?.[name] ?? 0]);
  const hasCost = rows.some((row) => row.cost !== null);
  const sum = (/** @type {string} */ name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);
  return html`
  <div class="tiles plain">
    <${Tile} label="Runs" value=${count(sum("runs"))} note=${`in ${count(days.length)} ${days.length === 1 ? "day" : "days"}`} />
    <${Tile} label="Input tokens" value=${count(sum("input_tokens"))} />
    <${Tile} label="Output tokens" value=${count(sum("output_tokens"))} />
    ${hasCost && html`<${Tile} label="Cost" value=${money(sum("cost"))} note=${rows.some((row) => row.cost === null) && "without models that have no price"} />`}
  </div>
  <div class=${hasCost ? "charts" : "charts even"}>
    <${Chart} label="Tokens per day" kind="bars" series=${[{ label: "input", points: of("input_tokens") }, { label: "output", points: of("output_tokens") }]} />
    <${Chart} label="Runs per day" kind="bars" series=${[{ label: "runs", points: of("runs") }]} />
    ${hasCost && html`<${Chart} label="Cost per day" kind="bars" format=${money} series=${[{ label: "cost", points: of("cost") }]} />`}
  </div>`;
}

/** @param {readonly (typeof DIMENSIONS[number])[]} by @returns {import("../parts/table.js").Column[]} */
function columns(by) {
  return [
    ...by.map((name) => ({ title: LABELS[name], key: name, cell: CELLS[name] })),
    { title: "Runs", key: "runs", align: "right", cell: (row) => count(row.runs) },
    { title: "Input tokens", key: "input_tokens", align: "right", cell: (row) => count(row.input_tokens) },
    { title: "Output tokens", key: "output_tokens", align: "right", cell: (row) => count(row.output_tokens) },
    { title: "Tokens", key: "total_tokens", align: "right", cell: (row) => count(row.total_tokens) },
    { title: "Cost", key: "cost", align: "right", cell: (row) => money(row.cost) },
  ];
}

/** @type {Record<string, (row: any) => any>} */
const CELLS = {
  day: (row) => row.day,
  deployment: (row) => (row.deployment ? html`<a href=${href(["deployments", row.deployment_id])}>${row.deployment}</a>` : html`<span class="quiet">deleted</span>`),
  model: (row) => row.model ?? NOTHING,
  key: (row) => row.key ?? row.key_id ?? html`<span class="quiet">none (crons, users)</span>`,
  user: (row) => row.user ?? html`<span class="quiet">${row.is_rest ? "all others" : "none"}</span>`,
  node: (row) => row.node ?? html`<span class="quiet">${row.is_rest ? "all others" : "outside of nodes"}</span>`,
};

/** @param {string} name */
const idOf = (name) => ({ deployment: "deployment_id", key: "key_id" })[name] ?? name;

/** @param {number} time */
const dayOf = (time) => new Date(time).toISOString().slice(0, 10);

/** Save a CSV file. A link cannot send the key as a header, and an address must not contain it. @param {Record<string, string>} query */
async function download(query) {
  const text = await control("GET", "/v2/usage", { query });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text ?? ""], { type: "text/csv" }));
  link.download = `usage-${query.from}-${query.until}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}
