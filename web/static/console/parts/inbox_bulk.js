// Answers to several questions: equal questions share one form.

import { control } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { plain } from "../core/format.js";
import { formKey, groupsOf, titleOf } from "./inbox.js";
import { Button, notify } from "./index.js";
import { QuestionForm } from "./question.js";

/** @typedef {import("./inbox.js").Question} Question */

const MAX_IDS = 100; // of one call

/**
 * @param {{
 *   questions: Question[], draftOf: (key: string) => Record<string, any>, onAnswered: (ids: string[], key: string) => void,
 *   onClear: () => void, onDialog: (name: "assign" | "snooze") => void,
 * }} props
 */
export function BulkPanel({ questions, draftOf, onAnswered, onClear, onDialog }) {
  const groups = groupsOf(questions);
  return html`
    <header class="inbox-head">
      <h2>${questions.length === 1 ? "1 question selected" : `${questions.length} questions selected`}</h2>
      ${groups.length > 1 && html`<p class="hint">The questions are not all equal. Each group of equal questions has a form.</p>`}
      <div class="actions">
        <${Button} onClick=${() => onDialog("assign")}>Assign…<//>
        <${Button} onClick=${() => onDialog("snooze")}>Snooze…<//>
        <${Button} onClick=${onClear}>Clear the selection<//>
      </div>
    </header>
    ${groups.map((group) => html`<${Group} key=${formKey(group[0])} group=${group} draft=${draftOf(formKey(group[0]))} onAnswered=${onAnswered} />`)}`;
}

/** @param {{group: Question[], draft: Record<string, any>, onAnswered: (ids: string[], key: string) => void}} props */
function Group({ group, draft, onAnswered }) {
  const [isBusy, setBusy] = useState(false);
  const [errors, setErrors] = useState(/** @type {Record<string, string>} */ ({}));
  const [first] = group;
  const send = async (/** @type {any} */ answer) => {
    setBusy(true);
    try {
      const { answered, failed } = await answerAll(group.map(({ id }) => id), answer);
      setErrors(failed);
      notify(answered.length === 1 ? "1 question answered" : `${answered.length} questions answered`);
      onAnswered(answered, Object.keys(failed).length ? "" : formKey(first));
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
    }
    setBusy(false);
  };
  return html`<section class="inbox-group" aria-label=${`${group.length} equal questions`}>
    <ul class="plain-list">${group.map((question) => html`<li key=${question.id}>
      ${plain(titleOf(question))} <span class="quiet">${question.deployment_name}</span>${errors[question.id] && html` <span class="bad">${errors[question.id]}</span>`}
    </li>`)}</ul>
    <${QuestionForm} question=${{ ...first, id: first.interrupt_id }} disabled=${isBusy} draft=${draft} count=${group.length} onAnswer=${send} />
  </section>`;
}

/**
 * Answer questions, in calls of at most MAX_IDS.
 * @param {string[]} ids @param {any} answer
 * @returns {Promise<{answered: string[], failed: Record<string, string>}>} `failed` holds error texts by id
 */
async function answerAll(ids, answer) {
  /** @type {{answered: string[], failed: Record<string, string>}} */
  const result = { answered: [], failed: {} };
  for (let at = 0; at < ids.length; at += MAX_IDS) {
    const { results } = await control("POST", "/v2/inbox/answer", { body: { ids: ids.slice(at, at + MAX_IDS), answer } });
    for (const { id, error } of results) {
      if (error) result.failed[id] = typeof error === "string" ? error : error.detail ?? JSON.stringify(error);
      else result.answered.push(id);
    }
  }
  return result;
}
