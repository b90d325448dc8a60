// The filters that selected runs, as they are stored with a bulk operation or a replay.

import { html } from "../core/dom.js";
import { assistantName, moment, plain, short, text } from "../core/format.js";
import { useAssistants } from "../core/names.js";
import { feedbackText } from "./filters.js";

const MOST_CHARACTERS = 80;

/** @param {{name: string, where: Record<string, any>}} props `name` of the deployment */
export function Criteria({ name, where }) {
  const assistants = useAssistants(name);
  const entries = Object.entries(where).filter(([, value]) => value !== null && value !== undefined);
  if (!entries.length) return html`<span class="quiet">all runs</span>`;
  return html`<span class="chips">${entries.map(([key, value]) => html`<span class="chip" key=${key} title=${text(value, 2_000)}>${inWords(key, value, assistants)}</span>`)}</span>`;
}

/** @param {string} key @param {any} value @param {Map<string, import("../core/names.js").Assistant>} assistants */
function inWords(key, value, assistants) {
  if (key === "status") return [value].flat().join(", ");
  if (key === "assistant_id" || key === "assistant") return assistants.has(value) ? assistantName(assistants.get(value)) : `assistant ${short(plain(String(value)))}`;
  if (key === "thread_id") return `thread ${short(value)}`;
  if (key === "graph_id") return `graph ${text(value, MOST_CHARACTERS)}`;
  if (key === "key_id") return `key ${text(value, MOST_CHARACTERS)}`;
  if (key === "run_ids") return `${value.length} chosen ${value.length === 1 ? "run" : "runs"}`;
  if (key === "since" || key === "until") return `${key} ${moment(value)}`;
  if (key === "feedback") return `feedback ${feedbackText({ ...value, key: text(value.key, MOST_CHARACTERS) })}`;
  if (key === "metadata") return Object.entries(value).map(([entry, is]) => `${text(entry, MOST_CHARACTERS)}=${text(is, MOST_CHARACTERS)}`).join(", ");
  return `${key} ${text(value, MOST_CHARACTERS)}`;
}
