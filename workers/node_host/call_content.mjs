/**
 * Inputs and outputs of model and tool calls in traces, for a deployment that asks for them with a variable.
 *
 * The shapes are those of OpenTelemetry's conventions for messages. Secret values are masked. A long text is cut, and the
 * oldest messages of a long conversation are left out. `cut` marks a record that lacks a part.
 */

import { masked } from "./masking.mjs";
import { typeOf } from "./messages.mjs";
import { dumps, loads } from "./serialization.mjs";

const { byteLength } = Buffer;
const { env } = process;
const VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";
const ON = ["true", "span_only", "span_and_event"];
const OFF = ["false", "no_content", "event_only"];
const MAX_TEXT = 4096; // characters of one text
const MAX_ATTRIBUTE = 16_384; // bytes of JSON
const MAX_ATTEMPT = 4 << 20; // bytes of all content of an attempt
const SEARCHED = 16_384; // characters of a text in which secrets are searched; more than are shown, since masks are shorter
const ROLES = new Map([["human", "user"], ["ai", "assistant"]]); // other types are roles of the same name

let isOn;

/** Whether the variables of the deployment ask for content in traces. */
export function isRequested() {
  if (isOn === undefined) {
    const value = (env[VARIABLE] ?? "").trim().toLowerCase();
    isOn = ON.includes(value);
    if (value && ![...ON, ...OFF].includes(value)) {
      console.warn(`${VARIABLE} must be one of ${[...ON, ...OFF].join(", ")}: traces get no content`);
    }
  }
  return isOn;
}

/** Adds inputs and outputs to the records of a run's calls. */
export class Content {
  #left = MAX_ATTEMPT;

  /** Add a conversation. Its first messages are the instructions if they are system messages. */
  addInput(record, messages) {
    const first = messages.findIndex((message) => typeOf(message) !== "system");
    const count = first < 0 ? messages.length : first;
    if (count) {
      const parts = messages.slice(0, count).flatMap((message) => partsOf(record, message));
      this.#add(record, "system", `[${fitting(record, parts.map(dumps)).join(",")}]`);
    }
    this.#addMessages(record, "input", messages.slice(count), {});
  }

  addOutput(record, messages) {
    this.#addMessages(record, "output", messages, { finish_reason: record.finish?.[0] ?? "stop" });
  }

  /** Add a tool's arguments or its result. */
  add(record, name, value) {
    const shown = shownOf(record, value);
    this.#add(record, name, typeof shown === "string" ? shown : dumps(shown));
  }

  #addMessages(record, name, messages, fields) {
    const newest = fitting(record, documents(record, messages, fields)).reverse();
    this.#add(record, name, `[${newest.join(",")}]`);
  }

  #add(record, name, text) {
    if (text.length > this.#left) {
      record.cut = true;
      return;
    }
    this.#left -= text.length;
    record[name] = text;
  }
}

/** Yield the documents of messages, the newest first. */
function* documents(record, messages, fields) {
  for (const message of messages.toReversed()) {
    const parts = fitting(record, partsOf(record, message).map(dumps), MAX_ATTRIBUTE / 2);
    const type = typeOf(message);
    const head = dumps({ role: ROLES.get(type) ?? type, ...fields });
    yield `${head.slice(0, -1)},"parts":[${parts.join(",")}]}`;
  }
}

/**
 * Return the first documents that fit into an attribute.
 *
 * @param {Record<string, any>} record
 * @param {Iterable<string>} texts
 * @returns {string[]}
 */
function fitting(record, texts, most = MAX_ATTRIBUTE) {
  const fit = [];
  let left = most;
  for (const text of texts) {
    left -= byteLength(text) + 1;
    if (left < 0) {
      record.cut = true;
      break;
    }
    fit.push(text);
  }
  return fit;
}

/** Return the parts of a message. Data of images and files is left out. */
function partsOf(record, message) {
  if (typeOf(message) === "tool") {
    const response = shownOf(record, message.content);
    return [{ type: "tool_call_response", id: message.tool_call_id, response }];
  }
  const blocks = Array.isArray(message.content) ? message.content : [message.content];
  const calls = (message.tool_calls ?? []).map((call) => ({
    type: "tool_call",
    id: call.id ?? null,
    name: masked(String(call.name)),
    arguments: shownOf(record, call.args),
  }));
  return [...blocks.flatMap((block) => partOf(record, block)), ...calls];
}

function partOf(record, block) {
  const text = typeof block === "string" ? block : block?.text;
  if (typeof text === "string") {
    return text ? [{ type: "text", content: shownOf(record, text) }] : [];
  }
  if (typeof block !== "object" || block === null || block.type === "tool_use" || block.type === "tool_call") {
    return [];
  }
  const thought = block.reasoning ?? block.thinking;
  return typeof thought === "string"
    ? [{ type: "reasoning", content: shownOf(record, thought) }]
    : [{ type: String(block.type).slice(0, 100) }];
}

/** Return a value as a span shows it: unchanged if it is short and has no secrets, otherwise as text. */
function shownOf(record, value) {
  const text = typeof value === "string" ? value : dumps(value);
  const shown = masked(text.slice(0, SEARCHED));
  if (text.length > SEARCHED || shown.length > MAX_TEXT) {
    record.cut = true;
    return shown.slice(0, MAX_TEXT);
  }
  return typeof value === "string" || shown !== text ? shown : loads(text);
}
