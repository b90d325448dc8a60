// What a graph asks a person, and the shape of answer it waits for. Three shapes are agreed on by libraries: the requests of
// `HumanInTheLoopMiddleware` (all calls of a turn at once, or one), and the older `HumanInterrupt`. Anything else is free.

import { resolved } from "./schema.js";

/**
 * @typedef {import("./run_view.js").Question} Question
 * @typedef {"accept"|"edit"|"respond"|"reject"|"ignore"} Choice
 * @typedef {object} Action something that waits for a person's word
 * @property {string} name
 * @property {Record<string, any>} args
 * @property {string} description
 * @property {Choice[]} choices
 * @property {any} [schema] of its arguments
 * @property {string} argsKey what the library calls them
 * @typedef {{choice: Choice|null, args: any, message: string}} Decision
 * @typedef {{kind: "batch"|"single"|"inbox", actions: Action[]}} Request
 */

const OF_MIDDLEWARE = /** @type {Record<string, Choice>} */ ({ approve: "accept", edit: "edit", reject: "reject", respond: "respond" });
const TO_MIDDLEWARE = /** @type {Record<string, string>} */ ({ accept: "approve", edit: "edit", reject: "reject", respond: "respond" });
const OF_INBOX = /** @type {[string, Choice][]} */ ([
  ["allow_accept", "accept"], ["allow_edit", "edit"], ["allow_respond", "respond"], ["allow_ignore", "ignore"],
]);
const ALL = Object.values(OF_MIDDLEWARE);

/** What is asked in a known shape; null when it is free. @param {Question} question @returns {Request|null} */
export function requestOf(question) {
  const { value } = question;
  if (Array.isArray(value?.action_requests) && value.action_requests.length) return { kind: "batch", actions: batched(value) };
  if (value?.type === "tool_approval" && typeof value.name === "string") return { kind: "single", actions: [oneCall(value, question.response_schema)] };
  const letters = Array.isArray(value) ? value : [value];
  if (letters.length && letters.every((each) => each?.action_request && each?.config)) return { kind: "inbox", actions: letters.map(letter) };
  return null;
}

/** @param {any} value @returns {Action[]} */
function batched({ action_requests: requests, review_configs: configs = [] }) {
  return requests.map((/** @type {any} */ request, /** @type {number} */ at) => {
    const name = request.name ?? request.action;
    const config = configs[at]?.action_name === name ? configs[at] : configs.find((/** @type {any} */ each) => each.action_name === name);
    const argsKey = "arguments" in request ? "arguments" : "args";
    return {
      name, argsKey,
      args: request[argsKey] ?? {},
      description: request.description ?? config?.description ?? "",
      choices: choicesAmong(config?.allowed_decisions),
      schema: config?.args_schema ?? config?.arguments_schema,
    };
  });
}

/** @param {any} value @param {any} answerSchema @returns {Action} */
function oneCall(value, answerSchema) {
  const root = answerSchema ?? {};
  const branches = (root.oneOf ?? root.anyOf ?? (answerSchema ? [root] : [])).map((/** @type {any} */ each) => resolved(each, root));
  const typeOf = (/** @type {any} */ branch) => branch.properties?.type?.const ?? branch.properties?.type?.enum?.[0];
  const edit = branches.find((/** @type {any} */ branch) => typeOf(branch) === "edit");
  const edited = edit && resolved(edit.properties?.edited_action, root);
  const args = edited?.properties?.args && { ...resolved(edited.properties.args, root), $defs: root.$defs };
  return {
    name: value.name, argsKey: "args", args: value.args ?? {}, description: value.description ?? "",
    choices: choicesAmong(branches.length ? branches.map(typeOf) : undefined), schema: args,
  };
}

/** @param {any} value @returns {Action} */
function letter({ action_request: request, config, description }) {
  return {
    name: request.action, argsKey: "args", args: request.args ?? {}, description: description ?? "",
    choices: OF_INBOX.filter(([name]) => config[name]).map(([, choice]) => choice),
  };
}

/** @param {string[]|undefined} allowed @returns {Choice[]} */
function choicesAmong(allowed) {
  const known = (allowed ?? []).map((each) => OF_MIDDLEWARE[each]).filter(Boolean);
  return known.length ? known : ALL;
}

/** Whether a decision can be sent. @param {Decision|undefined} decision */
export function isDecided(decision) {
  if (!decision?.choice) return false;
  return decision.choice !== "respond" || decision.message.trim() !== "";
}

/** The answer that the library waits for. @param {Request} request @param {Decision[]} decisions @returns {any} */
export function answerOf({ kind, actions }, decisions) {
  const answers = decisions.map((decision, at) => (kind === "inbox" ? inboxAnswer(actions[at], decision) : middlewareAnswer(actions[at], decision)));
  if (kind === "batch") return { decisions: answers };
  return kind === "single" ? answers[0] : answers;
}

/** @param {Action} action @param {Decision} decision */
function middlewareAnswer(action, { choice, args, message }) {
  const type = TO_MIDDLEWARE[/** @type {string} */ (choice)];
  if (type === "edit") return { type, edited_action: { name: action.name, [action.argsKey]: args } };
  if (type === "respond") return { type, message };
  return type === "reject" && message.trim() ? { type, message } : { type };
}

/** @param {Action} action @param {Decision} decision */
function inboxAnswer(action, { choice, args, message }) {
  if (choice === "edit") return { type: "edit", args: { action: action.name, args } };
  if (choice === "respond") return { type: "response", args: message };
  return { type: choice, args: null };
}

/** A schema that fits values nobody gave one for. @param {any} args */
export function schemaLike(args) {
  const types = /** @type {Record<string, string>} */ ({ string: "string", number: "number", boolean: "boolean" });
  const properties = Object.entries(args ?? {}).map(([name, value]) => [name, types[typeof value] ? { type: types[typeof value] } : {}]);
  return { type: "object", properties: Object.fromEntries(properties), required: properties.map(([name]) => name) };
}
