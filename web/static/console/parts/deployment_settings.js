// What a deployment runs with: variables by name, limits, pool. Changes of variables make a new revision.

import { html, useState } from "../core/dom.js";
import { control } from "../core/api.js";
import { can } from "../core/session.js";
import { Button, Empty, TextField, ask, notify } from "./index.js";

const LIMITS = [
  ["max_concurrent_runs", "Runs at a time"], ["hosts_per_runner", "Graph hosts on each runner"], ["run_timeout_seconds", "Longest run, in seconds"],
  ["memory_mb", "Memory of a graph host, in MB"], ["max_tokens_per_day", "Tokens a day"], ["max_run_tokens", "Tokens of one run"],
];

/** @param {{record: any, reload: () => void}} props */
export function DeploymentSettings({ record, reload }) {
  return html`<div class="columns">
    <section class="panel"><h2>Variables</h2><${Variables} record=${record} reload=${reload} /></section>
    <section class="panel"><h2>Limits and pool</h2><${Limits} record=${record} reload=${reload} /></section>
    ${can("deploy") && html`<section class="panel"><h2>Delete</h2><${Delete} record=${record} /></section>`}
  </div>`;
}

/** Changes are collected, so that they make one revision together. @param {{record: any, reload: () => void}} props */
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
    notify("A new revision with these variables is on its way.");
    reload();
  };
  return html`
    ${names.length === 0 && html`<${Empty} title="No variables" text="They are what graphs find in their environment; values are kept encrypted and never shown." />`}
    <ul class="plain-list">${names.map((one) => html`<li key=${one}><code>${one}</code> ${mark(one)}</li>`)}</ul>
    ${can("deploy") && html`
      <form onSubmit=${add}><div class="form-row">
        <${TextField} label="Name" value=${name} onInput=${setName} placeholder="OPENAI_API_KEY" />
        <${TextField} label="Value" type="password" value=${value} onInput=${setValue} />
        <${Button} type="submit" disabled=${!name.trim()}>Set<//>
      </div></form>
      ${count > 0 && html`<div class="actions"><${Button} kind="primary" onClick=${apply}>${count === 1 ? "Apply the change" : `Apply ${count} changes`}<//><${Button} onClick=${() => setStaged({})}>Discard<//></div>
        <p class="hint">It makes a new revision; what was built is not built again.</p>`}`}`;

  /** @param {string} one */
  function mark(one) {
    if (one in staged) return html`<span class="pill warn">${staged[one] === null ? "to be unset" : "to be set"}</span> <button type="button" class="plain" onClick=${() => forget(one)}>keep as it is</button>`;
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
      const numbers = Object.fromEntries(Object.entries(limits).map(([name, value]) => [name, numberOf(value)]));
      await control("PATCH", `/v2/deployments/${record.id}`, { body: { limits: numbers, ...(pool && { pool }) } });
      setWrong({});
      setTyped({});
      notify("Saved; runs that begin from now on keep to it.");
      reload();
    } catch (error) {
      const { fields = [] } = /** @type {any} */ (error);
      setWrong(Object.fromEntries(fields.map((/** @type {any} */ field) => [field.loc.at(-1), field.msg])));
      if (!fields.length) throw error;
    }
  };
  return html`
    ${known.map(([name, label]) => html`<${TextField} key=${name} label=${label} value=${values[name]} disabled=${isReadOnly} error=${wrong[name]} placeholder="no limit of its own" onInput=${type(name)} />`)}
    <${TextField} label="Pool" value=${values.pool} disabled=${isReadOnly} error=${wrong.pool} onInput=${type("pool")} hint="Runners of this pool execute its runs; those that wait move along." />
    ${!isReadOnly && html`<div class="actions"><${Button} kind="primary" disabled=${Object.keys(typed).length === 0} onClick=${save}>Save<//></div>`}`;
}

/** Empty is no limit; what is no number goes to the service as it is, which says so. @param {string} text */
function numberOf(text) {
  const number = Number(text.trim());
  return Number.isNaN(number) ? text : number;
}

/** @param {{record: any}} props */
function Delete({ record }) {
  const remove = async () => {
    const text = `${record.name} stops serving at once. Its threads, runs and logs are removed with it.`;
    if (!(await ask({ title: `Delete ${record.name}?`, text, action: "Delete for good", kind: "danger" }))) return;
    await control("DELETE", `/v2/deployments/${record.id}`);
    notify(`${record.name} is deleted.`);
    location.hash = "#/";
  };
  return html`<p>With all its threads, runs and logs.</p><${Button} kind="danger" onClick=${remove}>Delete this deployment<//>`;
}
