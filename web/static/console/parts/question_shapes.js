// Shapes of questions and of their answers. Three shapes have a form of their own: the requests of
// `HumanInTheLoopMiddleware`, for all tool calls of a turn or for one, and the older `HumanInterrupt`. LangChain for
// JavaScript writes the first in camel case. A question of any other shape takes text, JSON, or a value of its response schema.

import { plain, text } from "../core/format.js";
import { resolved } from "./schema.js";

/**
 * @typedef {import("./run_view.js").Question} Question
 * @typedef {"accept"|"edit"|"respond"|"reject"|"ignore"} Choice
 * @typedef {object} Action a tool call that a person decides on
 * @property {string} name
 * @property {Record<string, any>} args
 * @property {string} description
 * @property {Choice[]} choices
 * @property {any} [schema] schema of the arguments
 * @property {string} argsKey name of the arguments in the library's request
 * @property {string} [editKey] name of the edited action in the answer
 * @typedef {{choice: Choice|null, args: any, message: string}} Decision
 * @typedef {{kind: "batch"|"single"|"inbox", actions: Action[]}} Request
 */

const CHOICE_OF_MIDDLEWARE = /** @type {Record<string, Choice>} */ ({ approve: "accept", edit: "edit", reject: "reject", respond: "respond" });
const MIDDLEWARE_TYPE = /** @type {Record<string, string>} */ ({ accept: "approve", edit: "edit", reject: "reject", respond: "respond" });
const INBOX_CHOICES = /** @type {[string, Choice][]} */ ([
  ["allow_accept", "accept"], ["allow_edit", "edit"], ["allow_respond", "respond"], ["allow_ignore", "ignore"],
]);
const ALL_CHOICES = Object.values(CHOICE_OF_MIDDLEWARE);

/**
 * Parse a question of a known shape. Returns null for any other shape, and for a request that allows no decision.
 * @param {Question} question
 * @returns {Request|null}
 */
export function requestOf(question) {
  const value = inSnakeCase(question.value);
  if (isFilledList(value?.action_requests, isObject)) return { kind: "batch", actions: batchedActions(value) };
  if (value?.type === "tool_approval" && typeof value.name === "string") return { kind: "single", actions: [singleAction(value, question.response_schema)] };
  const requests = Array.isArray(value) ? value : [value];
  if (!isFilledList(requests, (each) => isObject(each?.action_request) && isObject(each.config))) return null;
  const actions = requests.map(inboxAction);
  return actions.every(({ choices }) => choices.length) ? { kind: "inbox", actions } : null;
}

/** @param {any} value */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {any} list @param {(item: any) => boolean} isItem */
const isFilledList = (list, isItem) => Array.isArray(list) && list.length > 0 && list.every(isItem);

/** The first of the descriptions that is text; else "". @param {...any} descriptions @returns {string} */
const described = (...descriptions) => descriptions.find((each) => typeof each === "string") ?? "";

/** A request for all tool calls of a turn with the names that LangChain for Python has; any other value as it is. @param {any} value */
function inSnakeCase(value) {
  if (!Array.isArray(value?.actionRequests)) return value;
  const reviews = (Array.isArray(value.reviewConfigs) ? value.reviewConfigs : []).filter(isObject);
  const snake = (/** @type {any} */ { actionName, allowedDecisions, argsSchema, ...rest }) =>
    ({ ...rest, action_name: actionName, allowed_decisions: allowedDecisions, args_schema: argsSchema });
  return { action_requests: value.actionRequests, review_configs: reviews.map(snake), editKey: "editedAction" };
}

/** Actions of a request for all tool calls of a turn. @param {any} value @returns {Action[]} */
function batchedActions({ action_requests: requests, review_configs: reviews, editKey }) {
  const configs = Array.isArray(reviews) ? reviews : [];
  return requests.map((/** @type {any} */ request, /** @type {number} */ at) => {
    const name = request.name ?? request.action;
    const config = configs[at]?.action_name === name ? configs[at] : configs.find((/** @type {any} */ each) => each?.action_name === name);
    const argsKey = "arguments" in request ? "arguments" : "args";
    return {
      name, argsKey, editKey,
      args: request[argsKey] ?? {},
      description: described(request.description, config?.description),
      choices: choicesAmong(config?.allowed_decisions),
      schema: config?.args_schema ?? config?.arguments_schema,
    };
  });
}

/** Action of a request for one tool call. Its choices are the branches of the response schema. @param {any} value @param {any} answerSchema @returns {Action} */
function singleAction(value, answerSchema) {
  const root = answerSchema ?? {};
  const branches = (root.oneOf ?? root.anyOf ?? (answerSchema ? [root] : [])).map((/** @type {any} */ each) => resolved(each, root));
  const typeOf = (/** @type {any} */ branch) => branch.properties?.type?.const ?? branch.properties?.type?.enum?.[0];
  const edit = branches.find((/** @type {any} */ branch) => typeOf(branch) === "edit");
  const edited = edit && resolved(edit.properties?.edited_action, root);
  const args = edited?.properties?.args && { ...resolved(edited.properties.args, root), $defs: root.$defs };
  return {
    name: value.name, argsKey: "args", args: value.args ?? {}, description: described(value.description),
    choices: choicesAmong(branches.length ? branches.map(typeOf) : undefined), schema: args,
  };
}

/** Action of a `HumanInterrupt`. @param {any} value @returns {Action} */
function inboxAction({ action_request: request, config, description }) {
  return {
    name: request.action, argsKey: "args", args: request.args ?? {}, description: described(description),
    choices: INBOX_CHOICES.filter(([name]) => config[name]).map(([, choice]) => choice),
  };
}

/** Choices of the allowed decisions; all choices if the request names none. @param {any} allowed @returns {Choice[]} */
function choicesAmong(allowed) {
  const known = (Array.isArray(allowed) ? allowed : []).filter((each) => Object.hasOwn(CHOICE_OF_MIDDLEWARE, each)).map((each) => CHOICE_OF_MIDDLEWARE[each]);
  return known.length ? known : ALL_CHOICES;
}

/** Return whether a decision is complete. @param {Decision|undefined} decision */
export function isDecided(decision) {
  if (!decision?.choice) return false;
  return decision.choice !== "respond" || decision.message.trim() !== "";
}

/** Build the answer in the shape that the library expects. @param {Request} request @param {Decision[]} decisions @returns {any} */
export function answerOf({ kind, actions }, decisions) {
  const answers = decisions.map((decision, at) => (kind === "inbox" ? inboxAnswer(actions[at], decision) : middlewareAnswer(actions[at], decision)));
  if (kind === "batch") return { decisions: answers };
  return kind === "single" ? answers[0] : answers;
}

/** @param {Action} action @param {Decision} decision */
function middlewareAnswer(action, { choice, args, message }) {
  const type = MIDDLEWARE_TYPE[/** @type {string} */ (choice)];
  if (type === "edit") return { type, [action.editKey ?? "edited_action"]: { name: action.name, [action.argsKey]: args } };
  if (type === "respond") return { type, message };
  return type === "reject" && message.trim() ? { type, message } : { type };
}

/** @param {Action} action @param {Decision} decision */
function inboxAnswer(action, { choice, args, message }) {
  if (choice === "edit") return { type: "edit", args: { action: action.name, args } };
  if (choice === "respond") return { type: "response", args: message };
  return { type: choice, args: null };
}

/** Derive a schema from the types of values. @param {any} args */
export function schemaLike(args) {
  const types = /** @type {Record<string, string>} */ ({ string: "string", number: "number", boolean: "boolean" });
  const properties = Object.entries(args ?? {}).map(([name, value]) => [name, types[typeof value] ? { type: types[typeof value] } : {}]);
  return { type: "object", properties: Object.fromEntries(properties), required: properties.map(([name]) => name) };
}

const HEADS = ["question", "message", "prompt", "query", "text", "description"];

/**
 * Split a question's value into its words and the other fields. Returns null if the value has no text in a usual field.
 * @param {any} value
 * @returns {{words: string, rest: Record<string, any>} | null}
 */
export function headOf(value) {
  if (typeof value === "string") return { words: value, rest: {} };
  if (!value || typeof value !== "object" || Array.isArray(value)) return null;
  const head = HEADS.find((name) => typeof value[name] === "string");
  if (!head) return null;
  const { [head]: words, ...rest } = value;
  return { words, rest };
}

/** Remove the marks of Markdown's emphasis, code, headings and quotes. @param {string} markdown */
const withoutMarks = (markdown) => markdown.replace(/\*\*|__|`+|^\s*(?:#{1,6}|>)\s+/gm, "");

/**
 * A question on one line, for lists.
 * @param {{kind?: string, value: any, is_value_left_out?: boolean, response_schema?: any}} question
 */
export function wordsOf({ kind, value, is_value_left_out: isLeftOut, response_schema }, limit = 200) {
  if (isLeftOut) return "A large question: open it to read it";
  if (kind === "breakpoint") return `Continue with ${text(Array.isArray(value) && value.length ? value.join(", ") : "the next node", limit)}?`;
  const request = requestOf({ id: "", value, response_schema });
  if (request) {
    const [first] = request.actions;
    const verb = request.actions.some(({ choices }) => choices.includes("accept")) ? "Approve" : "Answer";
    const name = `${verb} ${request.actions.map((action) => plain(String(action.name))).join(", ")}?`;
    return text(request.actions.length === 1 && first.description ? `${name} ${withoutMarks(first.description)}` : name, limit);
  }
  const head = headOf(value);
  return text(head ? withoutMarks(head.words) : value ?? null, limit);
}
