// A question of a graph, and the form for its answer. The playground, the inbox and the answer page use it.

import { html, useId, useRef, useState } from "../core/dom.js";
import { plain } from "../core/format.js";
import { Json } from "./json.js";
import { JsonEditor } from "./json_editor.js";
import { Markdown } from "./markdown.js";
import { answerOf, headOf, isDecided, requestOf, schemaLike } from "./question_shapes.js";
import { initial, kindOf } from "./schema.js";
import { SchemaEditor } from "./schema_form.js";

/**
 * @typedef {import("./run_view.js").Question & {kind?: string}} Question
 * @typedef {import("./question_shapes.js").Action} Action
 * @typedef {import("./question_shapes.js").Decision} Decision
 * @typedef {Record<string, any>} Draft the state of a form; its owner keeps it, so that a form can be closed and opened again
 * @typedef {{question: Question, disabled: boolean, draft: Draft, count: number, onAnswer: (answer: any) => any}} FormProps
 */

const CHOICE_LABELS = { accept: "Accept", edit: "Edit", respond: "Respond", reject: "Reject", ignore: "Ignore" };
const CHOICE_HINTS = {
  accept: "The call runs as it is.", edit: "The call runs with the arguments that you enter.", respond: "The call does not run. Your text is its result.",
  reject: "The call does not run. The model receives your reason.", ignore: "The call does not run, and the graph continues without a result.",
};

/**
 * The open questions of a thread. Each is answered on its own; the others stay open.
 * @param {{questions: Question[], disabled: boolean, onAnswer: (answers: Record<string, any>) => void}} props
 */
export function OpenQuestions({ questions, disabled, onAnswer }) {
  return html`<section class="questions" aria-label=${questions.length === 1 ? "A question waits for an answer" : `${questions.length} questions wait for answers`}>
    ${questions.map((question) => html`<${QuestionForm} key=${question.id} question=${question} disabled=${disabled}
      onAnswer=${(/** @type {any} */ answer) => onAnswer({ [question.id]: answer })} />`)}
  </section>`;
}

/**
 * A question and its answer form. Ctrl+Enter sends. `count` is the number of equal questions that the answer is for.
 * @param {{question: Question, disabled: boolean, onAnswer: (answer: any) => any, draft?: Draft, count?: number}} props
 */
export function QuestionForm({ question, disabled, onAnswer, draft, count = 1 }) {
  const ownDraft = useRef(/** @type {Draft} */ ({}));
  const request = question.kind === "breakpoint" ? null : requestOf(question);
  const Form = question.kind === "breakpoint" ? BreakpointForm : request ? ActionsForm : FreeForm;
  const sendWithKeys = (/** @type {any} */ event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    event.currentTarget.querySelector(".question-send .primary:not(:disabled)")?.click();
  };
  return html`<form class="question" data-question=${question.id} onKeyDown=${sendWithKeys} onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    ${question.task && html`<p class="question-from">Node <code>${plain(question.task)}</code></p>`}
    <${Form} question=${question} request=${request} disabled=${disabled} onAnswer=${onAnswer} draft=${draft ?? ownDraft.current} count=${count} />
  </form>`;
}

/**
 * State of a form that is also kept in the draft.
 * @template T
 * @param {Draft} draft @param {string} name @param {() => T} initialValue
 * @returns {[T, (next: T | ((before: T) => T)) => void]}
 */
function useDraft(draft, name, initialValue) {
  const [value, setValue] = useState(() => (name in draft ? draft[name] : initialValue()));
  return [value, (next) => setValue((/** @type {T} */ before) => (draft[name] = typeof next === "function" ? /** @type {any} */ (next)(before) : next))];
}

// Breakpoints

/** @param {FormProps} props */
function BreakpointForm({ question: { value }, disabled, onAnswer, count }) {
  const nodes = Array.isArray(value) ? value : [];
  return html`
    <p class="question-stop">The run stopped at a breakpoint${nodes.length > 0 && html` before ${nodes.map((node, at) => html`${at > 0 && ", "}<code key=${node}>${plain(String(node))}</code>`)}`}.</p>
    <div class="question-send"><button type="button" class="primary" disabled=${disabled} onClick=${() => onAnswer(null)}>${count > 1 ? `Continue ${count} threads` : "Continue"}</button></div>`;
}

// Questions of a known shape

/** @param {FormProps & {request: import("./question_shapes.js").Request}} props */
function ActionsForm({ request, disabled, onAnswer, draft, count }) {
  const [decisions, setDecisions] = useDraft(draft, "decisions", () => request.actions.map(undecided));
  const decide = (/** @type {number} */ at, /** @type {Partial<Decision>} */ change) =>
    setDecisions((before) => before.map((each, index) => (index === at ? { ...each, ...change } : each)));
  const canAcceptAll = request.actions.length > 1 && request.actions.every((action) => action.choices.includes("accept"));
  const send = (/** @type {Decision[]} */ complete) => onAnswer(answerOf(request, complete));
  const label = decisions.length > 1 ? `Send ${decisions.length} decisions` : "Send decision";
  return html`
    ${request.actions.map((action, at) => html`<${ActionForm} key=${at} action=${action} decision=${decisions[at]} disabled=${disabled}
      onDecide=${(/** @type {Partial<Decision>} */ change) => decide(at, change)} />`)}
    <div class="question-send">
      <button type="button" class="primary" disabled=${disabled || !decisions.every(isDecided)} onClick=${() => send(decisions)}>${count > 1 ? `${label} to ${count} questions` : label}</button>
      ${canAcceptAll && html`<button type="button" disabled=${disabled} onClick=${() => send(decisions.map((each) => ({ ...each, choice: "accept" })))}>Accept all</button>`}
    </div>`;
}

/** The decision before a choice; an action with one choice has it from the start. @param {Action} action @returns {Decision} */
function undecided(action) {
  return { choice: action.choices.length === 1 ? action.choices[0] : null, args: action.args, message: "" };
}

/** @param {{action: Action, decision: Decision, disabled: boolean, onDecide: (change: Partial<Decision>) => void}} props */
function ActionForm({ action, decision, disabled, onDecide }) {
  const group = useId();
  const { choice } = decision;
  return html`<fieldset class="action" data-action=${action.name} disabled=${disabled}>
    <legend><code>${plain(String(action.name))}</code></legend>
    ${action.description && html`<${Markdown} text=${action.description} />`}
    ${choice !== "edit" && html`<${Json} value=${action.args} />`}
    <div class="choices" role="radiogroup" aria-label=${`Decision on ${action.name}`}>
      ${action.choices.map((each) => html`<label key=${each} class=${choice === each ? "chosen" : ""} title=${CHOICE_HINTS[each]}>
        <input type="radio" name=${group} checked=${choice === each} onChange=${() => onDecide({ choice: each })} />${CHOICE_LABELS[each]}
      </label>`)}
    </div>
    ${choice && html`<p class="hint">${CHOICE_HINTS[choice]}</p>`}
    ${choice === "edit" && html`<${SchemaEditor} schema=${action.schema?.properties ? action.schema : schemaLike(action.args)} value=${decision.args}
      label=${`Arguments of ${action.name}`} onChange=${(/** @type {any} */ args) => onDecide({ args })} />`}
    ${(choice === "respond" || choice === "reject") && html`<label class="action-message">${choice === "respond" ? "Response" : "Reason (optional)"}
      <textarea rows="2" value=${decision.message} onInput=${(/** @type {any} */ event) => onDecide({ message: event.currentTarget.value })}></textarea>
    </label>`}
  </fieldset>`;
}

// Questions of any other shape

/** @param {FormProps} props */
function FreeForm({ question, disabled, onAnswer, draft, count }) {
  const responseSchema = question.response_schema;
  const isWrapped = Boolean(responseSchema) && kindOf(responseSchema, responseSchema).kind !== "object"; // the form edits objects only
  const schema = isWrapped ? { type: "object", properties: { answer: responseSchema }, required: ["answer"], $defs: responseSchema.$defs } : responseSchema;
  const hasSchema = Boolean(schema);
  const [view, setView] = useDraft(draft, "view", () => /** @type {"text"|"json"|"form"} */ (hasSchema ? "form" : "text"));
  const [text, setText] = useDraft(draft, "text", () => "");
  const [value, setValue] = useDraft(draft, "value", () => /** @type {any} */ (hasSchema ? initial(schema, schema) : null));
  const views = /** @type {["text"|"json"|"form", string][]} */ ([...(hasSchema ? [["form", "Form"]] : []), ["text", "Text"], ["json", "JSON"]]);
  const isEmpty = view === "text" ? text === "" : value === null || value === undefined; // null is no answer
  const send = () => onAnswer(view === "text" ? text : view === "form" && isWrapped ? value?.answer : value);
  return html`
    <${QuestionValue} value=${question.value} />
    <div class="schema-views" role="group" aria-label="Form of the answer">
      ${views.map(([name, title]) => html`<button key=${name} type="button" aria-pressed=${view === name ? "true" : "false"} onClick=${() => setView(name)}>${title}</button>`)}
    </div>
    ${view === "text" && html`<textarea class="answer" rows="3" aria-label="Answer" placeholder="Your answer" value=${text} disabled=${disabled}
      onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)}></textarea>`}
    ${view === "json" && html`<${JsonEditor} label="Answer as JSON" value=${value} onChange=${setValue} />`}
    ${view === "form" && html`<${SchemaEditor} label="Answer" schema=${schema} value=${value} onChange=${setValue} />`}
    <div class="question-send"><button type="button" class="primary" disabled=${disabled || isEmpty} onClick=${send}>${count > 1 ? `Answer ${count} questions` : "Answer"}</button></div>`;
}

/** The value of a question: its text as Markdown, other fields as a tree. @param {{value: any}} props */
export function QuestionValue({ value }) {
  const head = headOf(value);
  if (!head) return html`<${Json} value=${value} />`;
  return html`<${Markdown} text=${head.words} />${Object.keys(head.rest).length > 0 && html`<${Json} value=${head.rest} collapsed=${2} />`}`;
}
