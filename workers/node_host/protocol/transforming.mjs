/**
 * Application of a graph's own stream transformers to the events of protocol v2.
 *
 * A transformer receives the run's events in LangGraph's form. It may change or drop them, and may write its own events to
 * named channels. Transformers may exist to hide data. An event on which a transformer fails is therefore dropped, and if the
 * transformers cannot be created, all content is dropped. Transformers that LangChain adds to its agents give readers in
 * their own process another form of the same events, and are left out.
 */

import { milliseconds as now } from "./log.mjs";

const { isArray } = Array;
const { setTimeout } = globalThis;

const CUSTOM = "custom:"; // before the name of a channel
const FINALIZE_MS = 5_000;

/** The transformers of one run. */
export class Transformers {
  isUnusable = false;
  #report;
  #transformers = [];
  #produced = [];
  #namespace = [];
  #sequence = 0;
  /** @type {Promise<void> | null} */
  #ending = null;

  /**
   * @param {(() => any)[]} factories
   * @param {(text: string, error: unknown) => void} report
   */
  constructor(factories, report) {
    this.#report = report;
    try {
      factories.forEach((factory) => this.#add(factory()));
    } catch (error) {
      this.isUnusable = true;
      report("the graph's stream transformers cannot be used, so protocol v2 shows no content of this run", error);
    }
  }

  get isEmpty() {
    return !this.isUnusable && !this.#transformers.length;
  }

  #add(transformer) {
    if (transformer.__native === true) {
      return;
    }
    const projection = transformer.init() ?? {};
    this.#transformers.push(transformer);
    transformer.onRegister?.({ push: (ns, event) => this.#pass(ns, event) });
    for (const channel of Object.values(projection)) {
      if (typeof channel?._wire === "function" && typeof channel.channelName === "string") {
        channel._wire((data) => this.#produced.push(this.#event(CUSTOM + channel.channelName, this.#namespace, { data })));
      }
    }
  }

  /**
   * Return the events that take the place of one: itself, if it is kept, and those that the transformers write.
   *
   * @param {string} method
   * @param {string[]} ns
   * @param {{data: unknown, node?: string, timestamp?: number}} params
   * @returns {{event: any, isOwn: boolean}[]} `isOwn` is false for the event itself
   */
  transform(method, ns, params) {
    const event = this.#event(method, ns, params);
    if (!this.isUnusable) {
      this.#pass(ns, event);
    }
    return this.#produced.splice(0).map((each) => ({ event: each, isOwn: each !== event }));
  }

  /** End the transformers. Returns the events that they write at the end. `error` is that of a failed run. */
  async finish(error) {
    this.#ending ??= this.#end(error);
    await this.#ending;
    return this.#produced.splice(0);
  }

  async #end(error) {
    const timeout = new Promise((resolve) => setTimeout(resolve, FINALIZE_MS).unref());
    for (const transformer of this.#transformers) {
      try {
        const ended = error === undefined ? transformer.finalize?.() : transformer.fail?.(error);
        await Promise.race([ended, timeout]);
      } catch (failure) {
        this.#report("a stream transformer failed", failure);
      }
    }
  }

  #event(method, namespace, params) {
    return { type: "event", seq: this.#sequence++, method, params: { namespace, timestamp: now(), ...params } };
  }

  #pass(ns, event) {
    const outer = this.#namespace;
    this.#namespace = ns;
    let isKept = true;
    for (const transformer of this.#transformers) {
      try {
        isKept = transformer.process(event) !== false && isKept;
      } catch (error) {
        isKept = false;
        this.#report("a stream transformer failed", error);
      }
    }
    this.#namespace = outer;
    if (isKept) {
      this.#produced.push(event);
    }
  }
}

/** Return the name of the channel of an event that a transformer has written; undefined if it is none of a channel. */
export function channelOf({ method }) {
  return typeof method === "string" && method.startsWith(CUSTOM) ? method.slice(CUSTOM.length) : undefined;
}

/** Whether an event still has the form of its method after the transformers, which may have changed it in any way. */
export function isValid({ method, params }) {
  const isPlace = isArray(params?.namespace) && params.namespace.every((part) => typeof part === "string");
  const isObject = typeof params?.data === "object" && params.data !== null;
  return isPlace && (isObject || method === "values") && (method !== "messages" || typeof params.data.event === "string");
}
