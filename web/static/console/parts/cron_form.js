// The form of a cron. The schedule is shown in words while it is typed.

import { deployment } from "../core/api.js";
import { html, useId, useMemo } from "../core/dom.js";
import { assistantName } from "../core/format.js";
import { FormDialog, useForm } from "./form_dialog.js";
import { Field, JsonEditor, TextField } from "./index.js";
import { inWords } from "./schedule.js";

const STRATEGIES = ["enqueue", "reject", "interrupt", "rollback"];
const EXAMPLES = ["*/15 * * * *", "0 * * * *", "0 9 * * 1-5", "0 0 1 * *"];

/** @param {{name: string, cron?: any, assistants: any[], onClose: () => void, onDone: () => void}} props */
export function CronForm({ name, cron, assistants, onClose, onDone }) {
  const form = useForm(initial(cron, assistants));
  const { values } = form;
  const isOnThread = Boolean(values.thread_id.trim());
  const save = async () => {
    const at = deployment(name);
    if (cron) await at.call("PATCH", `/runs/crons/${cron.cron_id}`, { body: changed(cron, values) });
    else await at.call("POST", isOnThread ? `/threads/${encodeURIComponent(values.thread_id.trim())}/runs/crons` : "/runs/crons", { body: newCron(values) });
    onDone();
  };
  return html`
    <${FormDialog} title=${cron ? "Change the cron" : "New cron"} disabled=${values.input === undefined} onClose=${onClose} onSubmit=${save}>
      ${() => html`
        ${!cron && html`<${Choice} label="Assistant" name="assistant_id" form=${form} options=${assistants.map((one) => [one.assistant_id, labelOf(one)])} />`}
        <${ScheduleField} form=${form} />
        <${ZoneField} form=${form} />
        <${JsonEditor} label="Input" rows=${6} value=${values.input} onChange=${(/** @type {any} */ input) => form.set({ input })} />
        ${!cron && html`<${TextField} label="Thread" hint="Id of a thread. Empty: a new thread for each run" ...${form.bind("thread_id")} />`}
        ${isOnThread
          ? html`<${Choice} label="When the thread is busy" name="multitask_strategy" form=${form} options=${STRATEGIES.map((one) => [one, one])} />`
          : html`<${Choice} label="When a run has ended" name="on_run_completed" form=${form} options=${[["keep", "keep the run and its thread"], ["delete", "delete the run and its thread"]]} />`}
        <${TextField} label="Until" hint="A time in ISO 8601, in UTC unless it has a zone. Empty: without end" placeholder="2030-01-31T18:00:00Z" ...${form.bind("end_time")} />
        <${TextField} label="Webhook" type="url" hint="Called when a run has ended" placeholder="https://…" ...${form.bind("webhook")} />`}
    <//>`;
}

/** @param {any} one */
const labelOf = (one) => `${assistantName(one)}${one.name === one.graph_id ? "" : ` (${one.graph_id})`}`;

/** @param {any} cron @param {any[]} assistants */
function initial(cron, assistants) {
  const payload = cron?.payload ?? {};
  return {
    assistant_id: cron?.assistant_id ?? assistants[0]?.assistant_id ?? "",
    schedule: cron?.schedule ?? "0 9 * * 1-5",
    timezone: cron ? (cron.timezone ?? "") : Intl.DateTimeFormat().resolvedOptions().timeZone,
    input: cron ? (payload.input ?? null) : {},
    thread_id: cron?.thread_id ?? "",
    on_run_completed: cron?.on_run_completed ?? "keep",
    multitask_strategy: payload.multitask_strategy ?? "enqueue",
    end_time: cron?.end_time ?? "",
    webhook: payload.webhook ?? "",
  };
}

/** The body that creates a cron. @param {ReturnType<typeof initial>} values */
function newCron(values) {
  const { thread_id, on_run_completed, multitask_strategy, assistant_id, schedule, input } = values;
  return {
    assistant_id, schedule, input,
    ...(thread_id.trim() ? { multitask_strategy } : { on_run_completed }),
    ...(values.timezone.trim() && { timezone: values.timezone.trim() }),
    ...(values.end_time.trim() && { end_time: values.end_time.trim() }),
    ...(values.webhook.trim() && { webhook: values.webhook.trim() }),
  };
}

/** The body with only the changed fields. A changed schedule or time zone restarts the schedule from now. @param {any} cron @param {ReturnType<typeof initial>} values */
function changed(cron, values) {
  const before = /** @type {Record<string, any>} */ (initial(cron, []));
  const now = /** @type {Record<string, any>} */ (values);
  const names = ["schedule", "timezone", "input", "end_time", "webhook", cron.thread_id ? "multitask_strategy" : "on_run_completed"];
  const other = names.filter((one) => JSON.stringify(now[one]) !== JSON.stringify(before[one]));
  const body = Object.fromEntries(other.map((one) => [one, typeof now[one] === "string" ? now[one].trim() || null : now[one]]));
  return other.length ? body : { enabled: cron.enabled };
}

/** @param {{form: any}} props */
function ScheduleField({ form }) {
  const { schedule } = form.values;
  const id = useId();
  const words = inWords(schedule);
  return html`
    <${TextField} label="Schedule" hint="Minute, hour, day of month, month, day of week; seconds may come last" required maxlength="200" list=${id} autofocus ...${form.bind("schedule")} />
    <datalist id=${id}>${EXAMPLES.map((one) => html`<option key=${one} value=${one}>${inWords(one)}</option>`)}</datalist>
    <p class="quiet" role="status">${words ? html`<b>${words}</b>` : schedule.trim() && "This schedule cannot be shown in words. Its next times are shown once the cron is created."}</p>`;
}

/** @param {{form: any}} props */
function ZoneField({ form }) {
  const id = useId();
  const zones = useMemo(() => ["UTC", ...Intl.supportedValuesOf("timeZone")], []);
  return html`
    <${TextField} label="Time zone" hint="Empty: UTC" list=${id} ...${form.bind("timezone")} />
    <datalist id=${id}>${zones.map((/** @type {string} */ zone) => html`<option key=${zone} value=${zone}></option>`)}</datalist>`;
}

/** @param {{label: string, name: string, form: any, options: string[][]}} props */
function Choice({ label, name, form, options }) {
  return html`<${Field} label=${label}>
    <select value=${form.values[name]} onChange=${(/** @type {any} */ event) => form.set({ [name]: event.currentTarget.value })}>
      ${options.map(([value, shown]) => html`<option key=${value} value=${value} selected=${value === form.values[name]}>${shown}</option>`)}
    </select><//>`;
}
