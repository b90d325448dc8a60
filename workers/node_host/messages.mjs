/**
 * Messages in the flat shape of the deployment API, with the fields that LangChain for Python gives them.
 *
 * A message is recognized by a symbol that all copies of LangChain share, which a document from a client cannot have.
 */

export const MESSAGE = Symbol.for("langchain.message");
const { isArray } = Array;

/** Whether a value is a message of LangChain. */
export function isMessage(value) {
  return typeof value === "object" && value !== null && value[MESSAGE] === true;
}

/**
 * Return the name of LangChain's class that a message is an instance of, such as `AIMessageChunk`.
 *
 * @param {any} message
 * @returns {string}
 */
export function classOf(message) {
  return typeOf(message) === "remove" ? "RemoveMessage" : message.constructor.lc_name(); // which inherits its name
}

export function isChunk(message) {
  return classOf(message).endsWith("Chunk");
}

/** Return the type of a message. */
export function typeOf(message) {
  return message.type ?? message._getType();
}

/**
 * Return a message as an object of its fields. A chunk becomes a whole message: a model that was streamed returns chunks,
 * and a state holds messages.
 *
 * @param {any} message
 */
export function record(message) {
  const type = typeOf(message);
  const fields = {
    content: message.content,
    additional_kwargs: message.additional_kwargs ?? {},
    response_metadata: message.response_metadata ?? {},
    type,
    name: message.name ?? null,
    id: message.id ?? null,
  };
  switch (type) {
    case "ai":
      fields.tool_calls = toolCalls(message.tool_calls, "tool_call");
      fields.invalid_tool_calls = toolCalls(message.invalid_tool_calls, "invalid_tool_call");
      fields.usage_metadata = message.usage_metadata ?? null;
      break;
    case "tool":
      fields.tool_call_id = message.tool_call_id;
      fields.artifact = message.artifact ?? null;
      fields.status = message.status ?? "success";
      break;
    case "generic":
      fields.type = "chat";
      fields.role = message.role;
      break;
  }
  return fields;
}

/**
 * Return a streamed message: a chunk keeps its type and its chunks of tool calls.
 *
 * @param {any} message
 * @param {boolean} [isLast] whether it is the last chunk of its call
 */
export function streamedRecord(message, isLast = false) {
  const fields = record(message);
  if (!isChunk(message)) {
    return fields;
  }
  fields.type = classOf(message);
  if (fields.type === "AIMessageChunk") {
    fields.tool_call_chunks = (message.tool_call_chunks ?? []).map((chunk) => ({
      name: chunk.name ?? null,
      args: chunk.args ?? null,
      id: chunk.id ?? null,
      index: chunk.index ?? null,
      type: "tool_call_chunk",
    }));
    fields.chunk_position = isLast ? "last" : null;
  }
  return fields;
}

/** Return the short form of protocol v2. */
export function shortRecord(message) {
  const whole = record(message);
  const short = { type: whole.type, content: whole.content };
  const names = [
    "id", "name", "response_metadata", "tool_calls", "invalid_tool_calls", "tool_call_id", "status",
  ];
  for (const name of names) {
    if (!isEmpty(whole[name])) {
      short[name] = whole[name];
    }
  }
  if (whole.type === "tool") {
    short.artifact = whole.artifact;
  }
  return short;
}

function isEmpty(value) {
  return !value || (typeof value === "object" && Object.keys(value).length === 0);
}

function toolCalls(calls, type) {
  if (!isArray(calls)) {
    return [];
  }
  return calls.map((call) => ({ ...call, id: call.id ?? null, type }));
}
