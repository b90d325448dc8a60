/**
 * Exchanges: requests that pass over the socket in parts, in either direction, with flow control.
 *
 * A BODY part costs a credit. Each side begins with CREDITS credits, and the receiver returns one after it has consumed
 * such a part.
 */

import { randomBytes } from "node:crypto";

import * as frames from "../frames.mjs";
import { parseDocument } from "../json.mjs";
import { dumps } from "../serialization.mjs";

const { concat, from } = Buffer;
const CREDITS = 16;
const PART_BYTES = 64 * 1024; // of a body
const COSTLY = new Set([frames.BODY, frames.TEXT, frames.BYTES]);

/** One request. A received part of a kind in `last` ends it. */
class Exchange {
  isClosed = false; // no part is received or sent any more
  onClose = () => {};
  #connection;
  #id;
  #last;
  #forget;
  #parts = [];
  #credits = CREDITS;
  #waiting = new Set(); // functions that continue after a change

  constructor(connection, id, last, forget) {
    this.#connection = connection;
    this.#id = id;
    this.#last = last;
    this.#forget = forget;
  }

  /** Open an exchange that this host begins. */
  open(head) {
    this.#connection.send(frames.OPEN, this.#id, dumps(head));
  }

  /** Handle a received part. */
  receive(kind, data) {
    if (kind === frames.CREDIT) {
      this.#credits += Number(data.toString());
    } else {
      this.#parts.push([kind, data]);
      if (this.#last.has(kind)) {
        this.#end();
        this.onClose();
      }
    }
    this.#wake();
  }

  /**
   * Wait for the next part. Once the exchange has ended, always returns a CLOSE.
   *
   * @returns {Promise<[string, Buffer]>}
   */
  async part() {
    while (!this.#parts.length) {
      if (this.isClosed) {
        return [frames.CLOSE, from("{}")];
      }
      await this.#change();
    }
    const [kind, data] = this.#parts.shift();
    if (COSTLY.has(kind) && !this.isClosed) {
      this.#connection.send(frames.PART, this.#id, `${frames.CREDIT}1`);
    }
    return [kind, data];
  }

  /** Wait for a credit and send a part. Sends nothing if the exchange is closed. */
  async send(kind, data = from("")) {
    while (COSTLY.has(kind) && !this.#credits && !this.isClosed) {
      await this.#change();
    }
    if (this.#connection.isFull) {
      await this.#connection.drained();
    }
    if (!this.isClosed) {
      this.#credits -= Number(COSTLY.has(kind));
      this.#connection.send(frames.PART, this.#id, concat([from(kind), from(data)]));
    }
  }

  /** Send the bytes of a body in parts. */
  async sendBody(data) {
    for (let start = 0; start < data.length; start += PART_BYTES) {
      await this.send(frames.BODY, data.subarray(start, start + PART_BYTES));
    }
  }

  /** Send the last part and close the exchange. Does nothing if it is already closed. */
  finish(kind, document) {
    if (!this.isClosed) {
      this.#connection.send(frames.PART, this.#id, `${kind}${document === undefined ? "" : dumps(document)}`);
      this.#end();
    }
  }

  #end() {
    this.isClosed = true;
    this.#forget();
    this.#wake();
  }

  #change() {
    return new Promise((resolve) => this.#waiting.add(resolve));
  }

  #wake() {
    this.#waiting.forEach((resolve) => resolve());
    this.#waiting.clear();
  }
}

/** The exchanges in progress, by id. */
export class Exchanges {
  #connection;
  #open = new Map();

  /** @param {import("../connection.mjs").Connection} connection */
  constructor(connection) {
    this.#connection = connection;
  }

  /** Create an exchange. Without an id the host begins it, and gets a random id. */
  begin(id = randomBytes(16).toString("hex"), last = [frames.CLOSE]) {
    const exchange = new Exchange(this.#connection, id, new Set(last), () => this.#open.delete(id));
    this.#open.set(id, exchange);
    return exchange;
  }

  /** Pass a PART frame to its exchange. Ignores frames of exchanges that have ended. */
  receive(id, body) {
    this.#open.get(id)?.receive(String.fromCharCode(body[0]), body.subarray(1));
  }

  closeAll() {
    for (const exchange of [...this.#open.values()]) {
      exchange.receive(frames.CLOSE, from("{}"));
    }
  }
}

/** Return the reason in the data of a last part. */
export function reasonOf(data) {
  return (data.length && parseDocument(data).message) || "the deployment's connection was lost";
}

/** Return a stream of the BODY parts of an exchange. Other parts than END are errors. */
export function bodyOf(exchange, onCancel) {
  return new ReadableStream({
    type: "bytes",
    async pull(controller) {
      const [kind, data] = await exchange.part();
      if (kind === frames.BODY) {
        if (data.length) {
          controller.enqueue(new Uint8Array(data));
        } else {
          await this.pull?.(controller);
        }
      } else if (kind === frames.END) {
        controller.close();
        controller.byobRequest?.respond(0);
      } else {
        controller.error(new TypeError(reasonOf(data)));
      }
    },
    cancel: onCancel,
  });
}
