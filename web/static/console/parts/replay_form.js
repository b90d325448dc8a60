// The form that starts a replay: the revision, the past runs, what is recorded or live, bounds, and the rule.

import { control } from "../core/api.js";
import { html } from "../core/dom.js";
import { assistantName } from "../core/format.js";
import { useAssistants } from "../core/names.js";
import { navigate } from "../core/router.js";
import { PERIODS, feedbackOf, feedbackText, filterOf, since } from "./filters.js";
import { FormDialog, useForm } from "./form_dialog.js";
import { RevisionChoice, useDeployedRevisions } from "./revision_choice.js";
import { Check, Field, TextField, notify } from "./index.js";

const MOST_RUNS = 10_000, MOST_CONCURRENT = 32;
const EXAMPLE = "errors>0, cost>+20%, p95>+30%, score<-0.05";
/** @type {Record<string, string[]>} */
const STATUSES = { "": [], success: ["success"], failed: ["error", "timeout"], error: ["error"], timeout: ["timeout"], interrupted: ["interrupted"] };
const STATUS_CHOICES = [["", "All that have ended"], ["success", "Succeeded"], ["failed", "Failed or timed out"], ["interrupted", "Interrupted or cancelled"]];

/**
 * `before` is an earlier replay, whose values the form begins with: with the same seed, the same runs are replayed.
 * @param {{record: any, before?: Record<string, any>, onClose: () => void}} props `record` of the deployment
 */
export function ReplayForm({ record, before, onClose }) {
  const form = useForm(initial(before));
  const { values } = form;
  const assistants = [...useAssistants(record.name).values()];
  const revisions = useDeployedRevisions(record.id);
  const kept = before ? unshown(before) : {};
  const start = async () => {
    const replay = await control("POST", `/v2/deployments/${record.id}/replays`, { body: bodyOf(values, kept) });
    notify("The replay was started");
    navigate(["d", record.name, "replays", replay.id]);
  };
  return html`
    <${FormDialog} title=${before ? "Replay again" : "New replay"} label="Start the replay" wide onClose=${onClose} onSubmit=${start}>
      ${(/** @type {(field: string) => string | undefined} */ errorOf) => html`
        <${RevisionChoice} revisions=${revisions} value=${values.revision} otherwise="The latest deployed revision" hint="It is executed on past runs. It need not serve" error=${errorOf("revision") ?? errorOf("preview")} onChange=${(/** @type {string} */ revision) => form.set({ revision })} />
        <fieldset class="group"><legend>Past runs</legend>
          <div class="form-row">
            <${Choice} label="Status" name="status" form=${form} options=${STATUS_CHOICES} error=${errorOf("status")} />
            <${Choice} label="Assistant" name="assistant" form=${form} options=${[["", "Any assistant"], ...assistants.map((one) => [one.assistant_id, assistantName(one)])]} error=${errorOf("assistant_id")} />
            <${Choice} label="Time" name="since" form=${form} options=${PERIODS.map(({ value, label }) => [value, label])} error=${errorOf("since")} />
          </div>
          <div class="form-row">
            <${TextField} label="Metadata" placeholder="user=ann, or JSON" error=${metadataError(values.metadata) ?? errorOf("metadata")} ...${form.bind("metadata")} />
            <${TextField} label="Sample" type="number" min="1" max=${MOST_RUNS} required hint="So many of the runs, at random" error=${errorOf("sample")} ...${form.bind("sample")} />
            <${TextField} label="Seed" type="number" min="0" hint="The same seed selects the same runs. Empty: a random one" error=${errorOf("seed")} ...${form.bind("seed")} />
            <${TextField} label="Feedback" placeholder="thumbs<0.5" hint="Runs with feedback of this key, and such a score" error=${errorOf("feedback")} ...${form.bind("feedback")} />
          </div>
          ${kept.run_ids && html`<p class="hint">Only the ${kept.run_ids.length} runs that the earlier replay named.</p>`}
        </fieldset>
        <fieldset class="group"><legend>Tools and models</legend>
          <div class="form-row">
            <${Choice} label="Tools" name="tools" form=${form} options=${[["recorded", "Recorded results"], ["live", "Execute them"]]} error=${errorOf("tools")} hint=${values.tools === "live" ? "Only if the project's langgraph.json allows it" : "Equal calls get the recorded result, others are not executed"} />
            <${Choice} label="Models" name="models" form=${form} options=${[["live", "Call them"], ["recorded", "Recorded answers first"]]} error=${errorOf("models")} hint=${values.models === "live" ? "Each case costs about what its run did" : "A call with unrecorded messages is made"} />
            ${values.tools === "recorded" && html`<${TextField} label="Tools that may run" placeholder="search, get_order" hint="If a call is not recorded, and langgraph.json permits it. With commas between" error=${errorOf("live_tools")} ...${form.bind("live_tools")} />`}
          </div>
          <${Check} label="Nodes may use the network" checked=${values.network} onChange=${(/** @type {boolean} */ network) => form.set({ network })} />
        </fieldset>
        <fieldset class="group"><legend>Bounds</legend>
          <div class="form-row">
            <${TextField} label="Cases at once" type="number" min="1" max=${MOST_CONCURRENT} required error=${errorOf("concurrency")} ...${form.bind("concurrency")} />
            <${TextField} label="Most tokens" type="number" min="1" error=${errorOf("max_tokens")} ...${form.bind("max_tokens")} />
            <${TextField} label="Highest cost in $" type="number" min="0" step="any" error=${errorOf("max_cost")} ...${form.bind("max_cost")} />
            <${TextField} label="Most minutes" type="number" min="0" step="any" error=${errorOf("max_minutes")} ...${form.bind("max_minutes")} />
          </div>
        </fieldset>
        <${TextField} label="The replay fails if" placeholder=${EXAMPLE} hint="Conditions with commas between: errors, changed, diverged, cost, tokens, p50, p95, score, score.NAME. A sign compares with the original. Empty: it only reports" error=${errorOf("fail_on")} ...${form.bind("fail_on")} />`}
    <//>`;
}

/** @param {Record<string, any>} [before] */
function initial(before) {
  const where = before?.where ?? {};
  const statuses = [where.status ?? []].flat();
  return {
    revision: "",
    status: Object.keys(STATUSES).find((name) => STATUSES[name].join() === statuses.join()) ?? "",
    assistant: where.assistant_id ?? "",
    since: "",
    metadata: where.metadata ? JSON.stringify(where.metadata) : "",
    feedback: where.feedback ? feedbackText(where.feedback) : "",
    sample: String(before?.sample ?? 100),
    seed: String(before?.seed ?? ""),
    tools: before?.tools ?? "recorded",
    live_tools: (before?.live_tools ?? []).join(", "),
    models: before?.models ?? "live",
    network: before?.network ?? false,
    concurrency: String(before?.concurrency ?? 2),
    max_tokens: String(before?.max_tokens ?? ""),
    max_cost: String(before?.max_cost ?? ""),
    max_minutes: String(before?.max_minutes ?? ""),
    fail_on: before?.fail_on ?? "",
  };
}

/** The filters of an earlier replay that the form has no fields for. @param {Record<string, any>} before */
function unshown({ where: { since: from, until, graph_id, key_id, run_ids } }) {
  return Object.fromEntries(Object.entries({ since: from, until, graph_id, key_id, run_ids }).filter(([, value]) => value !== undefined && value !== null));
}

/** @param {ReturnType<typeof initial>} values @param {Record<string, any>} kept filters without a field */
function bodyOf(values, kept) {
  const number = (/** @type {string} */ typed) => (String(typed).trim() === "" ? null : Number(typed));
  const live = values.live_tools.split(",").map((/** @type {string} */ name) => name.trim()).filter(Boolean);
  const from = since(values.since);
  return {
    revision: values.revision || null,
    where: {
      ...kept,
      ...(values.status && { status: STATUSES[values.status] }),
      ...(values.assistant && { assistant_id: values.assistant }),
      ...(from && { since: from }),
      ...(values.feedback.trim() && { feedback: feedbackOf(values.feedback) }),
      ...(values.metadata.trim() && { metadata: filterOf(values.metadata) }),
    },
    sample: number(values.sample), seed: number(values.seed),
    tools: values.tools, models: values.models, network: values.network, live_tools: values.tools === "recorded" ? live : [],
    concurrency: number(values.concurrency), max_tokens: number(values.max_tokens), max_cost: number(values.max_cost), max_minutes: number(values.max_minutes),
    fail_on: values.fail_on.trim() || null,
  };
}

/** @param {string} typed @returns {string | undefined} */
function metadataError(typed) {
  try {
    filterOf(typed);
    return undefined;
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/** @param {{label: string, name: string, form: any, options: string[][], hint?: string, error?: string}} props */
function Choice({ label, name, form, options, hint, error }) {
  return html`<${Field} label=${label} hint=${hint} error=${error}>
    <select value=${form.values[name]} onChange=${(/** @type {any} */ event) => form.set({ [name]: event.currentTarget.value })}>
      ${options.map(([value, shown]) => html`<option key=${value} value=${value} selected=${value === form.values[name]}>${shown}</option>`)}
    </select><//>`;
}
