// The settings of a deployment: variables, limits and pool. A change of variables creates a new revision.

import { html, useState } from "../core/dom.js";
import { control } from "../core/api.js";
import { bytes, count, duration, money } from "../core/format.js";
import { can } from "../core/session.js";
import { Button, Empty, TextField, ask, notify } from "./index.js";

const LIMITS = [
  ["max_concurrent_runs", "Concurrent runs"], ["hosts_per_runner", "Graph hosts on each runner"], ["run_timeout_seconds", "Time limit of a run, in seconds"],
  ["memory_mb", "Memory of a graph host, in MB"], ["max_tokens_per_day", "Tokens per day"], ["max_run_tokens", "Tokens per run"],
  ["max_cost_per_day", "Cost per day, in US dollars"], ["max_run_cost", "Cost per run, in US dollars"],
  ["max_user_tokens_per_day", "Tokens of a user per day"], ["max_user_cost_per_day", "Cost of a user per day, in US dollars"],
  ["max_thread_tokens_per_day", "Tokens of a thread per day"], ["max_thread_cost_per_day", "Cost of a thread per day, in US dollars"],
  ["budget_webhook", "Webhook at 50, 80 and 100 % of a day's limit"],
];

/** @type {Record<string, (value: number) => string>} */
const FORMATS = { run_timeout_seconds: duration, memory_mb: (megabytes) => bytes(megabytes * 2 ** 20) };

/** The limits of a deployment in words, and what today's runs have used of those of a day. @param {any} record */
export function limitsInWords({ limits, used_today: usedToday }) {
  const used = /** @type {Record<string, number | null>} */ ({ max_tokens_per_day: usedToday?.tokens ?? null, max_cost_per_day: usedToday?.cost ?? null });
  return LIMITS.filter(([name]) => typeof limits[name] === "number").map(([name, label]) => {
    const format = FORMATS[name] ?? (name.includes("cost") ? money : count);
    return { label: label.split(", in ")[0], limit: format(limits[name]), used: typeof used[name] === "number" ? format(used[name]) : null };
  });
}

/** @param {{record: any, reload: () => void}} props */
export function DeploymentSettings({ record, reload }) {
  return html`<div class="columns">
    <section class="panel"><h2>Variables</h2><${Variables} record=${record} reload=${reload} /></section>
    <section class="panel"><h2>Limits and pool</h2><${Limits} record=${record} reload=${reload} /></section>
    ${can("deploy") && html`<section class="panel"><h2>Delete</h2><${Delete} record=${record} /></section>`}
  </div>`;
}

/** Changes are collected and applied together, so that they create one revision. @param {{record: any, reload: () => void}} props */
function Variables({ record, reload }) {
  const [staged, setStaged] = useState(/** @type {Record<string, string | null>} */ ({}));
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const names = [...new Set([...record.secrets.map((/** @type {any} */ one) => one.name), ...Object.keys(staged)])].sort();
  const count = Object.keys(staged).length;
  const add = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!name.trim()) return;
    setStaged({ ...staged, [name.trim()]: value });
    setName("");
    setValue("");
  };
  const forget = (/** @type {string} */ one) => setStaged(Object.fromEntries(Object.entries(staged).filter(([other]) => other !== one)));
  const apply = async () => {
    await control("PATCH", `/v2/deployments/${record.id}`, { body: { secret_changes: Object.entries(staged).map(([name, value]) => ({ name, value })) } });
    setStaged({});
    notify("A new revision with these variables is being deployed.");
    reload();
  };
  return html`
    ${names.length === 0 && html`<${Empty} title="No variables" text="Graphs read variables from their environment. Values are stored encrypted and never shown." />`}
    <ul class="plain-list">${names.map((one) => html`<li key=${one}><code>${one}</code> ${mark(one)}</li>`)}</ul>
    ${can("deploy") && html`
      <form onSubmit=${add}><div class="form-row">
        <${TextField} label="Name" value=${name} onInput=${setName} placeholder="OPENAI_API_KEY" />
        <${TextField} label="Value" type="password" value=${value} onInput=${setValue} />
        <${Button} type="submit" disabled=${!name.trim()}>Set<//>
      </div></form>
      ${count > 0 && html`<div class="actions"><${Button} kind="primary" onClick=${apply}>${count === 1 ? "Apply the change" : `Apply ${count} changes`}<//><${Button} onClick=${() => setStaged({})}>Discard<//></div>
        <p class="hint">This creates a new revision without a build.</p>`}`}`;

  /** @param {string} one */
  function mark(one) {
    if (one in staged) return html`<span class="pill warn">${staged[one] === null ? "will be unset" : "will be set"}</span> <button type="button" class="plain" onClick=${() => forget(one)}>undo</button>`;
    return can("deploy") && html`<button type="button" class="plain" onClick=${() => setStaged({ ...staged, [one]: null })}>Unset</button>`;
  }
}

/** @param {{record: any, reload: () => void}} props */
function Limits({ record, reload }) {
  const known = LIMITS.filter(([name]) => name in record.limits);
  /** @type {Record<string, string>} */
  const stored = { ...Object.fromEntries(known.map(([name]) => [name, String(record.limits[name] ?? "")])), pool: record.pool };
  const [typed, setTyped] = useState(/** @type {Record<string, string>} */ ({}));
  const values = { ...stored, ...typed };
  const type = (/** @type {string} */ name) => (/** @type {string} */ value) => setTyped({ ...typed, [name]: value });
  const [wrong, setWrong] = useState(/** @type {Record<string, string>} */ ({}));
  const isReadOnly = !can("deploy");
  const save = async () => {
    try {
      const { pool, ...limits } = typed;
      const changes = Object.fromEntries(Object.entries(limits).map(([name, value]) => [name, name === "budget_webhook" ? value.trim() : numberOf(value)]));
      await control("PATCH", `/v2/deployments/${record.id}`, { body: { limits: changes, ...(pool && { pool }) } });
      setWrong({});
      setTyped({});
      notify("Saved. The limits apply to runs that start from now on.");
      reload();
    } catch (error) {
      const { fields = [] } = /** @type {any} */ (error);
      setWrong(Object.fromEntries(fields.map((/** @type {any} */ field) => [field.loc.at(-1), field.msg])));
      if (!fields.length) throw error;
    }
  };
  const { tokens = null, cost = null, unpriced_models: unpriced = [] } = record.used_today ?? {};
  return html`
    ${tokens !== null && html`<p>Used today: ${count(tokens)} tokens, ${money(cost)}.</p>`}
    ${unpriced.length > 0 && html`<p class="quiet">Budgets in dollars count these models as 0, because they have no price: ${unpriced.join(", ")}.</p>`}
    ${known.map(([name, label]) => html`<${TextField} key=${name} label=${label} value=${values[name]} disabled=${isReadOnly} error=${wrong[name]} placeholder=${name === "budget_webhook" ? "None" : "No limit"} onInput=${type(name)} />`)}
    <${TextField} label="Pool" value=${values.pool} disabled=${isReadOnly} error=${wrong.pool} onInput=${type("pool")} hint="Runners of this pool execute the runs. Waiting runs move to the pool too." />
    ${!isReadOnly && html`<div class="actions"><${Button} kind="primary" disabled=${Object.keys(typed).length === 0} onClick=${save}>Save<//></div>`}`;
}

/** The number in a field, or null for no limit. Other text is sent unchanged, and the service returns the error. @param {string} text */
function numberOf(text) {
  const number = Number(text.trim());
  return Number.isNaN(number) ? text : number;
}

/** @param {{record: any}} props */
function Delete({ record }) {
  const remove = async () => {
    const text = `${record.name} stops serving immediately. Its threads, runs and logs are deleted.`;
    if (!(await ask({ title: `Delete ${record.name}?`, text, action: "Delete permanently", kind: "danger" }))) return;
    await control("DELETE", `/v2/deployments/${record.id}`);
    notify(`${record.name} was deleted.`);
    location.hash = "#/";
  };
  return html`<p>Deletes the deployment with all its threads, runs and logs.</p><${Button} kind="danger" onClick=${remove}>Delete this deployment<//>`;
}
