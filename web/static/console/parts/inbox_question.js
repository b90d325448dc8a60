// One question of the inbox: its facts, its answer form or its answer, and the last messages of its thread.

import { control, deployment } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { plain, short } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { can, me } from "../core/session.js";
import { ask } from "./dialog.js";
import { draftText, expiryVerb, isAnswerable, nameOf, titleOf } from "./inbox.js";
import { Ago, Button, Code, ErrorBox, Json, Pill, notify } from "./index.js";
import { Message } from "./message.js";
import { areMessages, normal } from "./messages.js";
import { QuestionForm, QuestionValue } from "./question.js";

/**
 * @typedef {import("./inbox.js").Question} Question
 * @typedef {import("./inbox_dialogs.js").Change} Change
 */

const MESSAGES = 4;
const ENDINGS = { answered: "Answered", expired: "Expired without an answer", closed: "Closed without an answer", open: "", snoozed: "" };

/**
 * @param {{
 *   question: Question, draft: Record<string, any>, equal: number, onChange: Change, onSelectEqual: () => void,
 *   onAnswer: (question: Question, runId: string | null) => void, onReload: () => void, onDialog: (name: "assign" | "snooze" | "link") => void,
 * }} props
 */
export function QuestionPanel({ question, draft, equal, onChange, onSelectEqual, onAnswer, onReload, onDialog }) {
  const [isBusy, setBusy] = useState(false);
  const isOpen = isAnswerable(question);
  const path = `/v2/inbox/${encodeURIComponent(question.id)}/answer`;
  const send = async (/** @type {Record<string, any>} */ body) => {
    setBusy(true);
    try {
      const { run_id: runId } = await control("POST", path, { body });
      onAnswer(question, runId ?? null);
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
      onReload(); // another caller may have answered
    }
    setBusy(false);
  };
  const cancel = async () => {
    const isSure = await ask({ title: "Cancel the run?", text: "The thread stops waiting, and nobody can answer the question any more.", action: "Cancel the run", kind: "danger" });
    if (isSure) await send({ action: "cancel" });
  };
  const isMine = question.assignee === nameOf(me.value);
  return html`
    <header class="inbox-head">
      <h2><a href=${href(["d", question.deployment_name, "threads", question.thread_id])}>${plain(titleOf(question))}</a></h2>
      <${Facts} question=${question} />
      ${isOpen && can("run") && html`<div class="actions">
        <${Button} onClick=${() => onChange({ assignee: isMine ? null : nameOf(me.value) })}>${isMine ? "Unassign" : "Assign to me"}<//>
        <${Button} onClick=${() => onDialog("assign")}>Assign…<//>
        <${Button} onClick=${() => onDialog("snooze")}>Snooze…<//>
        <${Button} onClick=${() => onDialog("link")}>Link…<//>
        <${Button} kind="danger" onClick=${cancel}>Cancel the run…<//>
      </div>`}
    </header>
    ${isOpen ? html`
      <${QuestionForm} key=${question.id} question=${{ ...question, id: question.interrupt_id }} disabled=${isBusy || !can("run")} draft=${draft} onAnswer=${(/** @type {any} */ answer) => send({ answer })} />
      ${!can("run") && html`<p class="hint">Your key can read questions. To answer them it needs the role run.</p>`}
      ${equal > 1 && can("run") && html`<p><${Button} onClick=${onSelectEqual}>Select all ${equal} questions equal to this one<//></p>`}`
    : html`<${Outcome} question=${question} draft=${draft} />`}
    <${Context} question=${question} />`;
}

/** @param {{question: Question}} props */
function Facts({ question }) {
  const { deployment_name: name, deployment_id: id, thread_id: thread, run_id: run } = question;
  return html`<p class="facts">
    <${Pill} status=${question.status} />
    <a href=${href(["deployments", id])}>${name}</a>
    ${(question.assistant_name || question.graph_id) && html`<span>${plain(question.assistant_name || question.graph_id || "")}</span>`}
    <span>asked <${Ago} at=${question.asked_at} />${question.asked_by ? `, started by ${plain(question.asked_by)}` : ""}</span>
    ${run && html`<a href=${href(["d", name, "runs", thread, run])}>Run ${short(run)}</a>`}
    ${question.assignee && html`<span>assigned to <b>${plain(question.assignee)}</b></span>`}
    ${question.status === "snoozed" && html`<span>snoozed until <${Ago} at=${question.snoozed_until} /></span>`}
    ${isAnswerable(question) && question.expires_at && html`<span>${expiryVerb(question.expires_at)} <${Ago} at=${question.expires_at} />${expiryVerb(question.expires_at) === "expires" && expiryText(question.on_expiry)}</span>`}
  </p>`;
}

/** @param {any} rule */
function expiryText(rule) {
  if (rule?.action === "answer") return ", then answered with its default";
  return rule?.action === "cancel" ? ", then the run is cancelled" : "";
}

/** How a question ended. A draft that was not sent stays readable. @param {{question: Question, draft: Record<string, any>}} props */
function Outcome({ question, draft }) {
  const { deployment_name: name, thread_id: thread, answer_run_id: run, status } = question;
  const unsent = draftText(draft);
  return html`
    <div class="question is-closed"><${QuestionValue} value=${question.value} /></div>
    <section class="inbox-outcome" aria-label="Outcome">
      <p role="status"><b>${ENDINGS[status]}</b>
        ${question.answered_by && html` by <b>${plain(question.answered_by)}</b>`}
        ${question.answered_at && html` <${Ago} at=${question.answered_at} />`}
        ${question.answered_from && html`<span class="quiet"> from ${plain(question.answered_from)}</span>`}
        ${run && html` · <a href=${href(["d", name, "runs", thread, run])}>Run ${short(run)}</a>`}</p>
      ${(status === "answered" || run) && html`<${Json} value=${question.answer} label="Answer" />`}
    </section>
    ${unsent && html`<details class="notice" open><summary>Your answer was not sent</summary><${Code} text=${unsent} /></details>`}`;
}

/** The last messages of the thread, or its values. @param {{question: Question}} props */
function Context({ question }) {
  const { deployment_name: name, thread_id: thread, status } = question;
  const { data, error } = useResource((signal) => deployment(name).call("GET", `/threads/${encodeURIComponent(thread)}/state`, { signal }), [name, thread, status]);
  if (error) return html`<${ErrorBox} error=${`The thread cannot be read: ${error.detail ?? error.message}`} />`;
  if (!data) return null;
  const values = data.values ?? {};
  if (!areMessages(values.messages) || !values.messages.length) {
    if (!Object.keys(values).length) return null;
    return html`<section class="inbox-context" aria-label="Values of the thread"><h3>Values of the thread</h3><${Json} value=${values} collapsed=${1} /></section>`;
  }
  const last = values.messages.slice(-MESSAGES).map(normal);
  const hidden = values.messages.length - last.length;
  return html`<section class="inbox-context" aria-label="Last messages">
    <h3>Last messages ${hidden > 0 && html`<a href=${href(["d", name, "threads", thread])}>${hidden} earlier</a>`}</h3>
    ${last.map((/** @type {any} */ message, /** @type {number} */ at) => html`<${Message} key=${message.id ?? at} message=${message} />`)}
  </section>`;
}
