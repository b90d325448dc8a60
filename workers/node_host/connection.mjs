/**
 * The host's end of the socket: batched sending, receiving by callback, and questions that await a reply.
 *
 * Frames are written synchronously, so that a graph cannot produce more than the runner reads. The socket's stream is
 * used for receiving only.
 */

import { writevSync } from "node:fs";
import { Socket } from "node:net";

import * as frames from "./frames.mjs";
import { parseDocument } from "./json.mjs";

const { Buffer, setImmediate, setTimeout } = globalThis;
const { concat } = Buffer;
const now = performance.now.bind(performance);
const exit = /** @type {any} */ (process).reallyExit.bind(process);
const { wait } = Atomics;

// Graphs stand still while more bytes than this wait to be sent.
const HIGH_WATER = 1024 * 1024;
// Minimum interval between two sends while frames keep coming.
const BATCH_MS = 1;
// How long one send waits for a runner that does not read.
const HOLD_MS = 50;
const RETRY_MS = 2;
const EXIT_MS = 5000;

// Frames that a peer or a client waits for. They are sent at once, with all frames before them.
const AWAITED = new Set([
  frames.DONE, frames.ASK, frames.PONG, frames.READY, frames.ANSWER, frames.CHECKED, frames.OPEN, frames.PART,
]);

const sleeper = new Int32Array(new SharedArrayBuffer(4));

/** Block this thread. */
function pause(milliseconds) {
  wait(sleeper, 0, 0, milliseconds);
}

/** One socket to the runner. */
export class Connection {
  #descriptor;
  #handler;
  #watch;
  #decoder = new frames.Decoder();
  #queue = [];
  #queued = 0;
  #unsent = frames.EMPTY;
  #isFlushing = false;
  #sentAt = 0;
  #asks = new Map();
  #lastAsk = 0;

  /**
   * @param {number} descriptor of the inherited socket
   * @param {(kind: number, id: string, body: Buffer) => void} handler
   * @param {{takeSocket: () => void, releaseSocket: () => void}} watch which writes to the socket, too
   */
  constructor(descriptor, handler, watch) {
    this.#descriptor = descriptor;
    this.#handler = handler;
    this.#watch = watch;
    const socket = new Socket({ fd: descriptor, readable: true, writable: false, allowHalfOpen: true });
    socket.on("data", (data) => this.#receive(data));
    socket.on("end", () => exit(1)); // the runner has ended, so nothing can receive the results
    socket.on("error", () => exit(1));
  }

  get isFull() {
    return this.#queued + this.#unsent.length > HIGH_WATER;
  }

  /**
   * Queue a frame for sending.
   *
   * @param {number} kind
   * @param {string} id
   * @param {Buffer | string} body
   */
  send(kind, id, body) {
    const frame = frames.encode(kind, id, body);
    this.#queue.push(frame);
    this.#queued += frame.length;
    if (AWAITED.has(kind)) {
      this.#push();
    } else if (this.isFull) {
      this.#hold();
    } else if (!this.#isFlushing) {
      this.#isFlushing = true;
      if (now() - this.#sentAt >= BATCH_MS) {
        setImmediate(() => this.#flush());
      } else {
        setTimeout(() => this.#flush(), BATCH_MS);
      }
    }
  }

  /** Wait until the runner has read enough for graphs to continue. */
  async drained() {
    while (this.isFull) {
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  /**
   * Send a frame that expects a reply, and return the reply's parts.
   *
   * @param {number} kind
   * @param {string} id
   * @param {(number: number) => string} document returns the JSON of the question with the given number
   * @param {Buffer[]} blobs
   * @returns {Promise<Buffer[]>}
   */
  ask(kind, id, document, blobs = []) {
    const number = ++this.#lastAsk;
    const text = document(number);
    return new Promise((resolve) => {
      this.#asks.set(number, resolve);
      this.send(kind, id, frames.pack([text, ...blobs]));
      this.#push();
    });
  }

  /** Send all queued frames, waiting up to 5 seconds for the runner, and end the process. */
  flushAndExit(code) {
    const until = now() + EXIT_MS;
    this.#push();
    while (this.#unsent.length && now() < until) {
      pause(RETRY_MS);
      this.#push();
    }
    exit(code);
  }

  #flush() {
    this.#isFlushing = false;
    this.#push();
    if (this.isFull) {
      this.#hold();
    }
  }

  /** Write as much as the socket accepts. A later call writes the rest. */
  #push() {
    if (this.#queue.length) {
      const waiting = this.#unsent.length ? [this.#unsent, ...this.#queue] : this.#queue;
      this.#unsent = waiting.length === 1 ? waiting[0] : concat(waiting);
      this.#queue = [];
      this.#queued = 0;
    }
    this.#watch.takeSocket();
    while (this.#unsent.length) {
      let sent;
      try {
        // `writeSync` reads its errors from a plain object, where it also finds what a project adds to all objects
        sent = writevSync(this.#descriptor, [this.#unsent]);
      } catch (error) {
        if (error.code !== "EAGAIN") {
          exit(1); // the runner has ended
        }
        break;
      }
      this.#unsent = this.#unsent.subarray(sent);
    }
    this.#sentAt = now();
    if (!this.#unsent.length) {
      this.#watch.releaseSocket();
    } else if (!this.#isFlushing) {
      this.#isFlushing = true;
      setTimeout(() => this.#flush(), RETRY_MS);
    }
  }

  /** Block for up to HOLD_MS while the runner does not read. A graph that never awaits would fill memory otherwise. */
  #hold() {
    const until = now() + HOLD_MS;
    this.#push();
    while (this.isFull && now() < until) {
      pause(RETRY_MS);
      this.#push();
    }
  }

  #receive(data) {
    for (const frame of this.#decoder.feed(data)) {
      if (frame.kind === frames.REPLY) {
        const [head, ...parts] = frames.unpack(frame.body);
        const { ask } = parseDocument(head);
        this.#asks.get(ask)?.(parts);
        this.#asks.delete(ask);
      } else {
        this.#handler(frame.kind, frame.id, frame.body);
      }
    }
  }
}
