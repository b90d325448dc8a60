// Server-sent events of a fetch's body, one by one.

/** @typedef {{id: string, event: string, data: any}} StreamEvent */

/**
 * The events as they come; data that is JSON is parsed. Leaving the loop closes the connection.
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<StreamEvent>}
 */
export async function* events(body) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n\r\n|\n\n|\r\r/);
      rest = lines.pop() ?? "";
      for (const block of lines) {
        const event = parse(block);
        if (event) yield event;
      }
    }
  } finally {
    void reader.cancel().catch(() => {});
  }
}

/** One block of lines; null for what has no data, as heartbeats. @param {string} block @returns {StreamEvent | null} */
export function parse(block) {
  let id = "", event = "message";
  /** @type {string[]} */
  const data = [];
  for (const line of block.split(/\r\n|\n|\r/)) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    const name = line.slice(0, colon);
    if (name === "id") id = value;
    else if (name === "event") event = value;
    else if (name === "data") data.push(value);
  }
  return data.length ? { id, event, data: parsed(data.join("\n")) } : null;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
