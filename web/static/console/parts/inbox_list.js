// The list of questions at the left of the inbox.

import { html } from "../core/dom.js";
import { plain } from "../core/format.js";
import { href } from "../core/router.js";
import { Ago, Pill } from "./index.js";
import { expiryVerb, isAnswerable, titleOf } from "./inbox.js";
import { wordsOf } from "./question_shapes.js";

/** @typedef {import("./inbox.js").Question} Question */

/**
 * @param {{questions: Question[], chosen: string | undefined, query: Record<string, string>, selected: Set<string>, canSelect: boolean, onSelect: (id: string, isSelected: boolean) => void}} props
 */
export function QuestionList({ questions, chosen, query, selected, canSelect, onSelect }) {
  return html`<ol class="inbox-list" aria-label="Questions">
    ${questions.map((question) => html`<${Row} key=${question.id} question=${question} isChosen=${question.id === chosen} query=${query}
      isSelected=${selected.has(question.id)} canSelect=${canSelect} onSelect=${onSelect} />`)}
  </ol>`;
}

/**
 * @param {{question: Question, isChosen: boolean, isSelected: boolean, canSelect: boolean, query: Record<string, string>, onSelect: (id: string, isSelected: boolean) => void}} props
 */
function Row({ question, isChosen, isSelected, canSelect, query, onSelect }) {
  const words = wordsOf(question);
  const { asked_at: at, asked_by: by, deployment_name: name } = question;
  return html`<li class=${isChosen ? "inbox-row is-chosen" : "inbox-row"} data-row-of=${question.id}>
    ${canSelect && isAnswerable(question) && html`<input type="checkbox" aria-label=${`Select: ${words}`} checked=${isSelected}
      onChange=${(/** @type {any} */ event) => onSelect(question.id, event.currentTarget.checked)} />`}
    <a data-row href=${href("/inbox", { ...query, question: question.id })} aria-current=${isChosen ? "true" : undefined}>
      <span class="inbox-words">${words}</span>
      <span class="inbox-thread"><span>${plain(titleOf(question))}</span><${Ago} at=${at} /></span>
      <span class="inbox-facts">
        <span>${name}${by ? ` · ${plain(by)}` : ""}</span>
        <${RowState} question=${question} />
      </span>
    </a>
  </li>`;
}

/** The parts of a row that depend on the question's status. @param {{question: Question}} props */
function RowState({ question }) {
  const { status, assignee, expires_at: expires, snoozed_until: snoozed } = question;
  if (status === "answered") return html`<span>answered${question.answered_by ? ` by ${plain(question.answered_by)}` : ""} <${Ago} at=${question.answered_at} /></span>`;
  if (status === "expired" || status === "closed") return html`<${Pill} status=${status} />`;
  return html`
    ${assignee && html`<span class="chip">${plain(assignee)}</span>`}
    ${snoozed && status === "snoozed" && html`<span>snoozed until <${Ago} at=${snoozed} /></span>`}
    ${expires && html`<span class="inbox-expiry">${expiryVerb(expires)} <${Ago} at=${expires} /></span>`}`;
}
