/**
 * The frames that a runner and a graph host exchange over one socket. `workers/graph_host/frames.py` documents the
 * kinds and the bodies.
 *
 * Ids are texts of 32 hexadecimal digits in this host.
 *
 * @typedef {{kind: number, id: string, body: Buffer}} Frame
 */

const { Buffer } = globalThis;
const { alloc, allocUnsafe, byteLength, concat } = Buffer;
const HEADER_BYTES = 21;
const COUNT_BYTES = 4;

export const NOBODY = "0".repeat(32);
const MAX_BODY_BYTES = 64 * 1024 * 1024;

export const [RUN, CANCEL, QUERY, REPLY, PING, STOP, WIDEN, CHECK, OPEN, PART] = range(1, 10);
export const [
  READY, EVENT, CHECKPOINT, WRITES, ASK, DONE, ANSWER, LOG, PONG, CHECKED, NODE, USED, CALL,
] = range(16, 13);

/** Kinds of a PART, which is its first byte. */
export const [HEAD, BODY, END, TEXT, BYTES, CLOSE, CREDIT, FAILED] = "hbetyckx";

const KINDS = new Set([...range(1, 10), ...range(16, 13)]);

function range(first, count) {
  return Array.from({ length: count }, (_, position) => first + position);
}

/** The peer sent something that is not a frame. */
class BadFrame extends Error {
  name = "BadFrame";
}

/**
 * Return one frame as bytes.
 *
 * @param {number} kind
 * @param {string} id
 * @param {Buffer | string} body
 */
export function encode(kind, id, body) {
  const size = typeof body === "string" ? byteLength(body) : body.length;
  const frame = allocUnsafe(HEADER_BYTES + size);
  frame.writeUInt32BE(size, 0);
  frame[4] = kind;
  frame.write(id, 5, 16, "hex");
  if (typeof body === "string") {
    frame.write(body, HEADER_BYTES, size, "utf8");
  } else {
    body.copy(frame, HEADER_BYTES);
  }
  return frame;
}

/**
 * Return several blobs as one body.
 *
 * @param {(Buffer | string)[]} parts
 */
export function pack(parts) {
  const sizes = parts.map((part) => (typeof part === "string" ? byteLength(part) : part.length));
  const body = allocUnsafe(sizes.reduce((sum, size) => sum + COUNT_BYTES + size, COUNT_BYTES));
  let at = body.writeUInt32BE(parts.length, 0);
  parts.forEach((part, position) => {
    at = body.writeUInt32BE(sizes[position], at);
    if (typeof part === "string") {
      body.write(part, at, "utf8");
    } else {
      part.copy(body, at);
    }
    at += sizes[position];
  });
  return body;
}

/**
 * Return the blobs of a body made by `pack`. Throws BadFrame.
 *
 * @param {Buffer} body
 * @returns {Buffer[]}
 */
export function unpack(body) {
  const parts = [];
  let at = COUNT_BYTES;
  if (body.length < at) {
    throw new BadFrame("a frame's parts are cut off");
  }
  for (let count = body.readUInt32BE(0); count > 0; count--) {
    if (at + COUNT_BYTES > body.length) {
      throw new BadFrame("a frame's parts are cut off");
    }
    const size = body.readUInt32BE(at);
    at += COUNT_BYTES;
    if (at + size > body.length) {
      throw new BadFrame("a part is longer than its frame");
    }
    parts.push(body.subarray(at, at + size));
    at += size;
  }
  return parts;
}

/** Decodes the bytes of a socket, which arrive in pieces of any size, into frames. */
export class Decoder {
  #pieces = [];
  #length = 0;
  #needed = HEADER_BYTES;

  /**
   * Return the frames that are now complete. Throws BadFrame.
   *
   * @param {Buffer} data
   * @returns {Frame[]}
   */
  feed(data) {
    this.#pieces.push(data);
    this.#length += data.length;
    const frames = [];
    if (this.#length < this.#needed) {
      return frames;
    }
    const pending = this.#pieces.length === 1 ? data : concat(this.#pieces, this.#length);
    let at = 0;
    this.#needed = HEADER_BYTES;
    while (pending.length - at >= HEADER_BYTES) {
      const size = pending.readUInt32BE(at);
      const kind = pending[at + 4];
      if (size > MAX_BODY_BYTES || !KINDS.has(kind)) {
        throw new BadFrame(`kind ${kind} with ${size} bytes`);
      }
      const end = at + HEADER_BYTES + size;
      if (end > pending.length) {
        this.#needed = HEADER_BYTES + size;
        break;
      }
      frames.push({
        kind,
        id: pending.toString("hex", at + 5, at + HEADER_BYTES),
        body: pending.subarray(at + HEADER_BYTES, end),
      });
      at = end;
    }
    const rest = pending.subarray(at);
    this.#pieces = rest.length ? [rest] : [];
    this.#length = rest.length;
    return frames;
  }
}

export const EMPTY = alloc(0);

