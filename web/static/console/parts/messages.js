// Messages of a graph's state, and partial messages while a model writes them.

/**
 * @typedef {{type?: string, text?: string, [key: string]: any}} Block a part of a message's content
 * @typedef {{name?: string, args?: any, id?: string|null, index?: number, type?: string}} ToolCall
 * @typedef {object} Message
 * @property {string} [id]
 * @property {string} type `human`, `ai`, `tool`, `system` …
 * @property {string|Block[]} content
 * @property {string} [name]
 * @property {ToolCall[]} [tool_calls]
 * @property {ToolCall[]} [invalid_tool_calls]
 * @property {ToolCall[]} [tool_call_chunks]
 * @property {string} [tool_call_id]
 * @property {string} [status]
 * @property {any} [artifact]
 * @property {{input_tokens?: number, output_tokens?: number, total_tokens?: number}|null} [usage_metadata]
 * @property {boolean} [growing] the message is not complete yet
 */

const ROLES = /** @type {Record<string, string>} */ ({ user: "human", assistant: "ai" });

/** Whether a value is a list of messages. @param {any} value @returns {value is Message[]} */
export function areMessages(value) {
  return Array.isArray(value) && value.every((one) => one && typeof one === "object" && ("content" in one || "type" in one));
}

/** A message in one form: `type` for `role`, without the suffixes of class names. @param {any} message @returns {Message} */
export function normal(message) {
  const given = String(message.type ?? message.role ?? "");
  const type = ROLES[given] ?? given.replace(/MessageChunk$|Message$/, "").toLowerCase();
  return { ...message, type, content: message.content ?? "" };
}

/** The text of a message, without its other blocks. @param {Message} message */
export function textOf(message) {
  if (typeof message.content === "string") return message.content;
  return message.content
    .map((block) => (typeof block === "string" ? block : block.type === "text" || block.type === undefined ? (block.text ?? "") : ""))
    .join("");
}

/** The reasoning of a model, if the message contains it. @param {Message} message */
export function thoughtOf(message) {
  if (typeof message.content === "string") return "";
  return message.content.map((block) => block.thinking ?? block.reasoning ?? "").filter((part) => typeof part === "string").join("");
}

/** Blocks other than text, reasoning and tool calls, which are shown separately. @param {Message} message */
export function otherBlocks(message) {
  if (typeof message.content === "string") return [];
  const shown = new Set(["text", "thinking", "reasoning", "tool_use", "tool_call", "input_json_delta", "redacted_thinking"]);
  return message.content.filter((block) => typeof block === "object" && block.type !== undefined && !shown.has(block.type));
}

/** A partial message with its next part added. @param {Message|null} before @param {any} given @returns {Message} */
export function grown(before, given) {
  const part = normal(given);
  const isPart = /Chunk$/.test(String(given.type ?? ""));
  if (!isPart) return { ...part, growing: false };
  const whole = before ?? { ...part, content: "", tool_call_chunks: [] };
  const chunks = before ? joined(before.tool_call_chunks ?? [], part.tool_call_chunks ?? []) : (part.tool_call_chunks ?? []);
  return {
    ...whole,
    content: together(whole.content, part.content),
    tool_call_chunks: chunks,
    tool_calls: chunks.length ? chunks.map(callOf) : (part.tool_calls ?? []),
    usage_metadata: summed(whole === before ? before.usage_metadata : null, part.usage_metadata),
    growing: given.chunk_position !== "last",
  };
}

/** @param {string|Block[]} one @param {string|Block[]} two @returns {string|Block[]} */
function together(one, two) {
  if (typeof one === "string" && typeof two === "string") return one + two;
  if (one === "") return two;
  if (two === "") return one;
  const blocks = [...asBlocks(one)];
  for (const block of asBlocks(two)) {
    const at = block.index === undefined ? blocks.length - 1 : blocks.findIndex((each) => each.index === block.index);
    const last = blocks[at];
    if (last && (last.type === block.type || block.index !== undefined)) blocks[at] = blockWith(last, block);
    else blocks.push(block);
  }
  return blocks;
}

/** @param {string|Block[]} content @returns {Block[]} */
function asBlocks(content) {
  const blocks = typeof content === "string" ? [content] : content;
  return blocks.map((block) => (typeof block === "string" ? { type: "text", text: block } : block));
}

/** @param {Block} one @param {Block} two @returns {Block} */
function blockWith(one, two) {
  const block = { ...one };
  for (const [name, value] of Object.entries(two)) {
    const isText = typeof value === "string" && typeof block[name] === "string" && !["type", "id", "index", "name"].includes(name);
    block[name] = isText ? block[name] + value : (value ?? block[name]);
  }
  return block;
}

/** @param {ToolCall[]} before @param {ToolCall[]} parts @returns {ToolCall[]} */
function joined(before, parts) {
  if (!parts.length) return before;
  const calls = [...before];
  for (const part of parts) {
    const at = calls.findIndex((call) => call.index === part.index && (!part.id || !call.id || call.id === part.id));
    if (at < 0) calls.push(part);
    else calls[at] = { ...calls[at], name: (calls[at].name ?? "") + (part.name ?? ""), args: (calls[at].args ?? "") + (part.args ?? ""), id: calls[at].id ?? part.id };
  }
  return calls;
}

/** A tool call from its parts. Its arguments are text until they are complete JSON. @param {ToolCall} chunk @returns {ToolCall} */
function callOf(chunk) {
  return { name: chunk.name, id: chunk.id, args: parsed(chunk.args) };
}

/** @param {any} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text ?? "";
  }
}

/** @param {any} one @param {any} two */
function summed(one, two) {
  if (!one || !two) return two ?? one ?? null;
  const names = ["input_tokens", "output_tokens", "total_tokens"];
  return Object.fromEntries(names.map((name) => [name, (one[name] ?? 0) + (two[name] ?? 0)]));
}

/** Whether two versions of a message render alike, so that no render is needed. @param {Message} one @param {Message} two */
export function looksSame(one, two) {
  return (
    one.type === two.type && Boolean(one.growing) === Boolean(two.growing) && one.status === two.status && one.name === two.name &&
    sameJson(one.content, two.content) && sameJson(one.tool_calls ?? [], two.tool_calls ?? []) &&
    sameJson(one.usage_metadata ?? null, two.usage_metadata ?? null)
  );
}

/** @param {any} one @param {any} two */
function sameJson(one, two) {
  return one === two || (typeof one === "object" && JSON.stringify(one) === JSON.stringify(two));
}

/** A random UUID. `crypto.randomUUID` is missing on pages without TLS. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
