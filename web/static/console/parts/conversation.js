// What a thread has come to, as it is read: messages or values, then what is asked, what went wrong, what can be done next.

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
    ${isEmpty(view) && html`<${Empty} title=${isChat ? "Say something" : "Give it an input"} text=${isChat ? "The answer appears here, word by word." : "What the graph makes of it appears here."} />`}
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

/** What models say within subgraphs, for as long as these work. @param {{view: RunView}} props */
function Asides({ view }) {
  const working = inside(view.items.value, "");
  return working.map(({ step, label }) => html`<section class="aside" key=${step.key} aria-label=${`Within ${label}`}>
    <p class="part-label">${label}</p>
    ${step.said.value.map((/** @type {any} */ entry) => html`<${MessageView} key=${entry.key} entry=${entry} results=${NONE} tools=${NO_TOOLS} phase=${view.phase} edit=${NO_EDIT} />`)}
  </section>`);
}

/** Steps of subgraphs that say something. @param {any[]} items @param {string} outer @returns {{step: any, label: string}[]} */
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
      : next.length > 0 && html`<${Standing} next=${next} hasFailed=${Boolean(error) && !isStopped} isStopped=${isStopped} run=${run} />`}`;
}

/** Answers that somebody else was faster with are refused, not taken for something else. @param {Record<string, any>} answers */
const answering = (answers) => ({ command: { resume: answers }, if_thread_status: ["interrupted"] });

/** @param {{error: {error?: string, message?: string}}} props */
function Failure({ error }) {
  return html`<div class="error-box play-error" role="alert"><p><b>${error.error ?? "Error"}</b></p><p>${error.message ?? ""}</p></div>`;
}

/** @param {{next: string[], hasFailed: boolean, isStopped: boolean, run: Run}} props */
function Standing({ next, hasFailed, isStopped, run }) {
  const names = next.map((name) => html`<code key=${name}>${name}</code> `);
  const said = hasFailed ? "It can go on from its last checkpoint, before" : isStopped ? "Stopped before" : "The thread stands before";
  return html`<div class="play-stands"><span>${said} ${names}</span>${can("run") && html`<${Button} onClick=${() => void run({ input: null })}>${hasFailed ? "Try again" : "Go on"}<//>`}</div>`;
}

