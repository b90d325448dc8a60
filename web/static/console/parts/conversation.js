// The state of a thread: its messages or values, then open questions, the error of the last run, and the next action.

import { html } from "../core/dom.js";
import { Chat, MessageView } from "./chat.js";
import { Button, Empty, Json } from "./index.js";
import { OpenQuestions } from "./question.js";
import { can } from "../core/session.js";

const NONE = { value: new Map() };
const NO_TOOLS = { value: {} };
const NO_EDIT = { current: undefined };

/**
 * @typedef {import("./run_view.js").RunView} RunView
 * @typedef {(body: Record<string, any>, message?: any) => Promise<boolean>} Run
 */

/** @param {{control: import("./run_control.js").RunControl, schemas: any, threadId: string|null, run: Run}} props */
export function Conversation({ control, schemas, threadId, run }) {
  const { view } = control;
  const isChat = Boolean(schemas?.state_schema?.properties?.messages) || view.entries.value.length > 0;
  const edit = can("run") && threadId ? (/** @type {any} */ message, /** @type {string} */ text) => void control.branch(message, text, run) : undefined;
  return html`<${Chat} view=${view} onEdit=${edit}>
    ${isEmpty(view) && html`<${Empty} title=${isChat ? "Send a message" : "Enter an input"} text=${isChat ? "The answer appears here while the model writes it." : "The values of the graph appear here."} />`}
    ${!isChat && html`<${Values} view=${view} />`}
    <${Asides} view=${view} />
    <${Ending} view=${view} run=${run} />
  <//>`;
}

/** @param {RunView} view */
function isEmpty(view) {
  return view.phase.value === "idle" && !view.entries.value.length && !Object.keys(view.values.value ?? {}).length && !view.error.value && !view.questions.value.length;
}

/** The values of a graph that does not chat. @param {{view: RunView}} props */
function Values({ view }) {
  const values = view.values.value;
  if (!values || !Object.keys(values).length) return null;
  return html`<article class="message values"><header><span class="message-by">Values</span></header><${Json} value=${values} collapsed=${2} label="Values" /></article>`;
}

/** Messages of models in subgraphs, while the subgraphs work. @param {{view: RunView}} props */
function Asides({ view }) {
  const working = inside(view.items.value, "");
  return working.map(({ step, label }) => html`<section class="aside" key=${step.key} aria-label=${`Within ${label}`}>
    <p class="part-label">${label}</p>
    ${step.said.value.map((/** @type {any} */ entry) => html`<${MessageView} key=${entry.key} entry=${entry} results=${NONE} tools=${NO_TOOLS} phase=${view.phase} edit=${NO_EDIT} />`)}
  </section>`);
}

/** The working steps of subgraphs that have messages, with the names of their parents. @param {any[]} items @param {string} outer @returns {{step: any, label: string}[]} */
function inside(items, outer) {
  return items.filter((item) => item.kind === "step" && item.status.value === "working").flatMap((step) => {
    const label = outer ? `${outer} › ${step.name}` : step.name;
    const own = outer && step.said.value.length ? [{ step, label }] : [];
    return [...own, ...inside(step.items.value, label)];
  });
}

/** @param {{view: RunView, run: Run}} props */
function Ending({ view, run }) {
  const phase = view.phase.value;
  const questions = view.questions.value, next = view.next.value, error = view.error.value;
  if (phase === "waiting") return html`<p class="play-waits" role="status">Waiting for a runner…</p>`;
  if (phase === "stopping") return html`<p class="play-waits" role="status">Stopping…</p>`;
  if (phase === "running") return html`<p class="play-waits working" role="status">Working…</p>`;
  const isStopped = error?.error === "UserInterrupt";
  return html`
    ${error && !isStopped && html`<${Failure} error=${error} />`}
    ${questions.length > 0 ? html`<${OpenQuestions} questions=${questions} disabled=${!can("run")} onAnswer=${(/** @type {any} */ answers) => run(answering(answers))} />`
      : next.length > 0 && html`<${NextNodes} next=${next} hasFailed=${Boolean(error) && !isStopped} isStopped=${isStopped} run=${run} />`}`;
}

/** The body of a run that answers questions. The service refuses it if another person has answered first. @param {Record<string, any>} answers */
const answering = (answers) => ({ command: { resume: answers }, if_thread_status: ["interrupted"] });

/** @param {{error: {error?: string, message?: string}}} props */
function Failure({ error }) {
  return html`<div class="error-box play-error" role="alert"><p><b>${error.error ?? "Error"}</b></p><p>${error.message ?? ""}</p></div>`;
}

/** @param {{next: string[], hasFailed: boolean, isStopped: boolean, run: Run}} props */
function NextNodes({ next, hasFailed, isStopped, run }) {
  const names = next.map((name) => html`<code key=${name}>${name}</code> `);
  const text = hasFailed ? "The run can be continued from its last checkpoint, before" : isStopped ? "Stopped before" : "Paused before";
  return html`<div class="play-stands"><span>${text} ${names}</span>${can("run") && html`<${Button} onClick=${() => void run({ input: null })}>${hasFailed ? "Try again" : "Continue"}<//>`}</div>`;
}

