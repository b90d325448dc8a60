// A question that a graph asks, and the form that answers it.

import { html, useEffect, useId, useState } from "../core/dom.js";
import { plain } from "../core/format.js";
import { Json, JsonEditor } from "./index.js";
import { Markdown } from "./markdown.js";
import { answerOf, isDecided, requestOf, schemaLike } from "./question_shapes.js";
import { initial, kindOf } from "./schema.js";
import { SchemaEditor } from "./schema_form.js";

/**
 * @typedef {import("./run_view.js").Question} Question
 * @typedef {import("./question_shapes.js").Action} Action
 * @typedef {import("./question_shapes.js").Decision} Decision
 */

const WORDS = { accept: "Accept", edit: "Edit", respond: "Respond", reject: "Reject", ignore: "Ignore" };
const SAYS = {
  accept: "It goes on as it is.", edit: "It goes on with other arguments.", respond: "It is not done; this is its result instead.",
  reject: "It is not done; the model is told why.", ignore: "It is passed over.",
};

/**
 * All questions that are open. Each is answered by itself; the others stay open.
 * @param {{questions: Question[], disabled: boolean, onAnswer: (answers: Record<string, any>) => void}} props
 */
export function OpenQuestions({ questions, disabled, onAnswer }) {
  return html`<section class="questions" aria-label=${questions.length === 1 ? "A question waits for an answer" : `${questions.length} questions wait for answers`}>
    ${questions.map((question) => html`<${QuestionForm} key=${question.id} question=${question} disabled=${disabled}
      onAnswer=${(/** @type {any} */ answer) => onAnswer({ [question.id]: answer })} />`)}
  </section>`;
}

/** @param {{question: Question, disabled: boolean, onAnswer: (answer: any) => void}} props */
function QuestionForm({ question, disabled, onAnswer }) {
  const request = requestOf(question);
  return html`<form class="question" data-question=${question.id} onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    ${question.task && html`<p class="question-from">asked by <code>${question.task}</code></p>`}
    ${request ? html`<${ActionsForm} request=${request} disabled=${disabled} onAnswer=${onAnswer} />`
      : html`<${FreeForm} question=${question} disabled=${disabled} onAnswer=${onAnswer} />`}
  </form>`;
}

// Known shapes

/** @param {{request: import("./question_shapes.js").Request, disabled: boolean, onAnswer: (answer: any) => void}} props */
function ActionsForm({ request, disabled, onAnswer }) {
  const [decisions, setDecisions] = useState(() => request.actions.map(undecided));
  const decide = (/** @type {number} */ at, /** @type {Partial<Decision>} */ change) =>
    setDecisions((before) => before.map((each, index) => (index === at ? { ...each, ...change } : each)));
  const canAcceptAll = request.actions.length > 1 && request.actions.every((action) => action.choices.includes("accept"));
  const send = (/** @type {Decision[]} */ given) => onAnswer(answerOf(request, given));
  return html`
    ${request.actions.map((action, at) => html`<${ActionForm} key=${at} action=${action} decision=${decisions[at]} disabled=${disabled}
      onDecide=${(/** @type {Partial<Decision>} */ change) => decide(at, change)} />`)}
    <div class="question-send">
      <button type="button" class="primary" disabled=${disabled || !decisions.every(isDecided)} onClick=${() => send(decisions)}>Send ${decisions.length > 1 ? `${decisions.length} decisions` : "decision"}</button>
      ${canAcceptAll && html`<button type="button" disabled=${disabled} onClick=${() => send(decisions.map((each) => ({ ...each, choice: "accept" })))}>Accept all</button>`}
    </div>`;
}

/** @param {Action} action @returns {Decision} */
function undecided(action) {
  return { choice: action.choices.length === 1 ? action.choices[0] : null, args: action.args, message: "" };
}

/** @param {{action: Action, decision: Decision, disabled: boolean, onDecide: (change: Partial<Decision>) => void}} props */
function ActionForm({ action, decision, disabled, onDecide }) {
  const group = useId();
  const { choice } = decision;
  return html`<fieldset class="action" data-action=${action.name} disabled=${disabled}>
    <legend><code>${plain(action.name)}</code></legend>
    ${action.description && html`<${Markdown} text=${action.description} />`}
    ${choice !== "edit" && html`<${Json} value=${action.args} />`}
    <div class="choices" role="radiogroup" aria-label=${`What is to happen with ${action.name}`}>
      ${action.choices.map((each) => html`<label key=${each} class=${choice === each ? "chosen" : ""} title=${SAYS[each]}>
        <input type="radio" name=${group} checked=${choice === each} onChange=${() => onDecide({ choice: each })} />${WORDS[each]}
      </label>`)}
    </div>
    ${choice && html`<p class="hint">${SAYS[choice]}</p>`}
    ${choice === "edit" && html`<${SchemaEditor} schema=${action.schema?.properties ? action.schema : schemaLike(action.args)} value=${decision.args}
      label=${`Arguments of ${action.name}`} onChange=${(/** @type {any} */ args) => onDecide({ args })} />`}
    ${(choice === "respond" || choice === "reject") && html`<label class="action-message">${choice === "respond" ? "Response" : "Reason (may be left out)"}
      <textarea rows="2" value=${decision.message} onInput=${(/** @type {any} */ event) => onDecide({ message: event.currentTarget.value })}></textarea>
    </label>`}
  </fieldset>`;
}

// Anything else

/** @param {{question: Question, disabled: boolean, onAnswer: (answer: any) => void}} props */
function FreeForm({ question, disabled, onAnswer }) {
  const asked = question.response_schema;
  const isWrapped = Boolean(asked) && !isEditable(asked);
  const schema = isWrapped ? { type: "object", properties: { answer: asked }, required: ["answer"], $defs: asked.$defs } : asked;
  const hasSchema = Boolean(schema);
  const [as, setAs] = useState(/** @type {"text"|"json"|"form"} */ (hasSchema ? "form" : "text"));
  const [text, setText] = useState("");
  const [value, setValue] = useState(/** @type {any} */ (hasSchema ? initial(schema, schema) : null));
  const ways = /** @type {["text"|"json"|"form", string][]} */ ([...(hasSchema ? [["form", "Form"]] : []), ["text", "Text"], ["json", "JSON"]]);
  const isEmpty = as === "text" ? text === "" : value === null || value === undefined; // null answers nothing
  const send = () => !isEmpty && !disabled && onAnswer(as === "text" ? text : as === "form" && isWrapped ? value?.answer : value);
  useEffect(() => setText(""), [question.id]);
  return html`
    <${Asked} value=${question.value} />
    <div class="schema-views" role="group" aria-label="The answer's form">
      ${ways.map(([name, title]) => html`<button key=${name} type="button" aria-pressed=${as === name ? "true" : "false"} onClick=${() => setAs(name)}>${title}</button>`)}
    </div>
    ${as === "text" && html`<textarea class="answer" rows="2" aria-label="Answer" placeholder="Your answer" value=${text} disabled=${disabled}
      onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send()}
      onInput=${(/** @type {any} */ event) => setText(event.currentTarget.value)}></textarea>`}
    ${as === "json" && html`<${JsonEditor} label="Answer as JSON" value=${value} onChange=${setValue} />`}
    ${as === "form" && html`<${SchemaEditor} label="Answer" schema=${schema} value=${value} onChange=${setValue} />`}
    <div class="question-send"><button type="button" class="primary" disabled=${disabled || isEmpty} onClick=${send}>Answer</button></div>`;
}

/** @param {any} schema */
const isEditable = (schema) => kindOf(schema, schema).kind === "object";

const HEADS = ["question", "message", "prompt", "query", "text", "description"];

/** What is asked: its words as text, the rest as a tree. @param {{value: any}} props */
function Asked({ value }) {
  if (typeof value === "string") return html`<${Markdown} text=${value} />`;
  const head = value && typeof value === "object" && !Array.isArray(value) ? HEADS.find((name) => typeof value[name] === "string") : undefined;
  if (!head) return html`<${Json} value=${value} />`;
  const { [head]: words, ...rest } = value;
  return html`<${Markdown} text=${words} />${Object.keys(rest).length > 0 && html`<${Json} value=${rest} />`}`;
}
