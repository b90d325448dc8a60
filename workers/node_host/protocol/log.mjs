/**
 * Events of protocol v2 in a run's log, besides the classic events, and those for open and answered interrupts.
 *
 * An event's name is `~` and a JSON array: method, namespace, end of the event's id ("": its number in the log), and name
 * of the custom event. Its data is the complete `params`, which later components pass on without decoding.
 *
 * The events for interrupts are written for every run on a thread, even if no reader of protocol v2 is present.
 */

import { isResumeMap } from "../inputs.mjs";
import { stringify } from "../json.mjs";
import { dumps } from "../serialization.mjs";

const { byteLength } = Buffer;
const { now } = Date;

export const PROTOCOL = "protocol"; // the internal stream mode that requests these events; callers cannot use it
const TOO_LARGE = "event_too_large"; // the custom event in place of one that exceeds the limit
const CONTROL = new Set(["__interrupt__", "__resume__", "__error__", "__error_source_node__"]);

export const milliseconds = now;

/** Writes the events of protocol v2 of one run. */
export class ProtocolLog {
  #send;
  #maxBytes;

  /**
   * @param {(name: string, data: string) => void} send
   * @param {number} maxBytes
   */
  constructor(send, maxBytes) {
    this.#send = send;
    this.#maxBytes = maxBytes;
  }

  /**
   * Write one event. If it is too large, write a custom event in its place and return false.
   *
   * @param {string} method
   * @param {string[]} ns
   * @param {string} data JSON
   * @param {{node?: string, idTail?: string, name?: string | null, timestamp?: number}} [more]
   */
  write(method, ns, data, { node, idTail = "", name = null, timestamp = now() } = {}) {
    const ofNode = node === undefined ? "" : `"node":${stringify(node)},`;
    const params = `{"namespace":${stringify(ns)},${ofNode}"timestamp":${timestamp},"data":${data}}`;
    const size = byteLength(params);
    if (size > this.#maxBytes) {
      if (name !== TOO_LARGE) {
        const message = `${method} event of ${size} bytes: the limit is ${this.#maxBytes} bytes`;
        const report = { name: TOO_LARGE, payload: { method, message } };
        this.write("custom", ns, stringify(report), { name: TOO_LARGE });
      }
      return false;
    }
    this.#send(`~${stringify([method, ns, idTail, name])}`, params);
    return true;
  }
}

/** Return the ids of the interrupts that a run with this resume value answers. */
export async function answeredInterrupts(saver, config, resume) {
  if (isResumeMap(resume) && Object.keys(resume).length) {
    return Object.keys(resume);
  }
  return await waitingInterrupts(saver, config);
}

/** Return the ids of the interrupts of a checkpoint, also of nodes that the graph lacks. */
export async function waitingInterrupts(saver, config) {
  const checkpoint = await saver.getTuple(config);
  return checkpoint === undefined ? [] : openIds(checkpoint.pendingWrites ?? []);
}

/**
 * Write an event for each open interrupt.
 *
 * @param {ProtocolLog} log
 * @param {{ns: string[], id: string, value: unknown}[]} interrupts
 * @param {Map<string, string[]>} known the namespaces where interrupts were raised, by id
 */
export function writeRequested(log, interrupts, known = new Map()) {
  for (const { ns: place, id, value } of interrupts) {
    const ns = known.get(id) ?? place;
    const idTail = `input|${ns.join("|")}|${id}`;
    for (const shown of [value, null]) {
      // without the value if the event is too large
      const data = { interrupt_id: id, payload: shown, value: shown };
      if (log.write("input.requested", ns, dumps(data), { idTail })) {
        break;
      }
    }
  }
}

export function writeAnswered(log, ids) {
  if (ids.length) {
    log.write("input.answered", [], stringify({ interrupt_ids: ids }));
  }
}

/** Return the ids of interrupts of unfinished tasks in a checkpoint, including answered ones of such a task. */
function openIds(writes) {
  const ended = new Set(writes.filter(([, channel]) => !CONTROL.has(channel)).map(([task]) => task));
  const raised = writes.filter(([task, channel]) => channel === "__interrupt__" && !ended.has(task));
  const ids = raised.flatMap(([, , value]) => value).map((item) => item?.id);
  return [...new Set(ids.filter((id) => typeof id === "string"))];
}
