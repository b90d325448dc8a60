/**
 * A project's `Auth` object (`auth.path`): authenticates callers and authorizes their calls.
 * `workers/graph_host/project/auth.py` documents the documents and answers.
 *
 * Authorization fails closed: any behaviour of the project's functions outside the contract is `failed`.
 */

import { storage as currentStorage } from "../current.mjs";
import { NOBODY } from "../frames.mjs";
import { LoadFailed, loadObject } from "../loading.mjs";
import { LOGGER, userStack } from "../output.mjs";
import { errorName, plain } from "../serialization.mjs";

const { Request, setTimeout, clearTimeout } = globalThis;
const { isArray } = Array;
const { stringify, parse } = JSON;

const KEY = "auth.path";
const ANY = "*";
const GLOBAL = "*"; // the event of a handler for all actions
const CACHE = "~handlerCache";
// Longer than the caller's timeout of 10 seconds, so that the caller gives up first.
const ASK_MS = 10_500;
const [STUDIO_IDENTITY, STUDIO_KIND] = ["langgraph-studio-user", "StudioUser"];
const LINE = /^[\x20-\x7e]*$/;

/** A project's function refuses the call, with its own status and text. */
class Denial extends Error {
  constructor(status, detail, headers = {}) {
    super(detail);
    this.status = status;
    this.detail = detail;
    this.headers = headers;
  }
}

/** A project's function returned a value outside the contract. */
class WrongAnswer extends Error {
  name = "WrongAnswer";
}

/** A project's authorization. */
class ProjectAuth {
  #authenticate;
  #handlers;
  #limiter;

  constructor({ authenticate, callbacks }, limiter) {
    this.#authenticate = authenticate;
    this.#handlers = new Map(Object.entries(callbacks ?? {}));
    this.#limiter = limiter;
  }

  /** Return the names of `authenticate`'s parameters, and the actions that have a handler. */
  describe() {
    return { parameters: ["request"], handlers: [...this.#handlers.keys()].map(pairOf).sort() };
  }

  /** Answer a call. Errors of user code become `denied` or `failed`. */
  async answer(document) {
    const { op } = document;
    /** @type {(document: any) => Promise<any>} */
    const answerOf = op === "authenticate" ? this.#userOf : this.#decisionOf;
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(reject, ASK_MS, new WrongAnswer(`${op} did not answer in time`));
    });
    try {
      const acting = { __proto__: null, id: NOBODY, isOver: true, user: op === "authenticate" ? null : document.user };
      return await Promise.race([currentStorage.run(acting, () => answerOf.call(this, document)), late]);
    } catch (error) {
      const denial = denialOf(error);
      if (denial !== null) {
        return { denied: { status: denial.status, detail: denial.detail, headers: denial.headers } };
      }
      this.#limiter.emit("ERROR", LOGGER, `${op} failed\n${userStack(error)}`, NOBODY);
      const reason = error instanceof WrongAnswer ? error.message : `${op} raised ${errorName(error)}`;
      return { failed: reason };
    } finally {
      clearTimeout(timer);
    }
  }

  async #userOf({ request }) {
    return { user: documentOf(await this.#authenticate(requestOf(request))) };
  }

  async #decisionOf({ user, asks }) {
    const granted = [];
    for (const ask of asks) {
      granted.push(await this.#decided(user, ask));
    }
    return { granted };
  }

  async #decided(user, { resource, action, value }) {
    const handler = this.#handler(resource, action);
    if (handler === undefined) {
      return { value, filter: null };
    }
    const seen = { ...defaults(user.identity), ...user };
    const result = await handler({
      event: `${resource}:${action}`, resource, action, value, permissions: [...seen.permissions], user: seen,
    });
    return { value: jsonOf(value, "value"), filter: filterOf(result, resource) };
  }

  /** Return the most specific handler of an action. */
  #handler(resource, action) {
    const names = [`${resource}:${action}`, resource, `${ANY}:${action}`, GLOBAL];
    return names.map((name) => this.#handlers.get(name)).find((handler) => handler !== undefined);
  }
}

/** Load the project's `Auth` object. Throws LoadFailed. */
export async function load(location, limiter) {
  const auth = await loadObject(KEY, location);
  const cache = auth?.[CACHE];
  if (typeof cache !== "object" || cache === null) {
    throw new LoadFailed(`${KEY}: ${location} is no Auth of @langchain/langgraph-sdk`);
  }
  if (typeof cache.authenticate !== "function") {
    throw new LoadFailed(`${KEY}: no function is registered with authenticate()`);
  }
  return new ProjectAuth(cache, limiter);
}

/** Return the resource and action of a handler's event. */
function pairOf(event) {
  const [resource, action = ANY] = event.split(":");
  return [resource, action];
}

/** Return the caller's request without its body, which stays in the web process. */
function requestOf({ method, headers, url }) {
  const request = new Request(url, { method, headers: headers.filter(([name]) => !name.startsWith(":")) });
  const read = () => Promise.reject(new TypeError("authenticate cannot read the request's body"));
  const readers = ["json", "text", "formData", "arrayBuffer", "blob", "bytes"];
  return Object.defineProperties(request, Object.fromEntries(readers.map((name) => [name, { value: read }])));
}

/** Convert the result of `authenticate` to a user's JSON document. Throws WrongAnswer. */
export function documentOf(returned) {
  const entries = typeof returned === "string" ? { identity: returned } : plain(returned);
  if (typeof entries !== "object" || entries === null || isArray(entries)) {
    throw new WrongAnswer("authenticate returned no user");
  }
  if (entries.identity === undefined || entries.identity === null) {
    throw new WrongAnswer("authenticate returned no user: it must return a text, or an object with 'identity'");
  }
  const identity = typeof entries.identity === "number" ? String(entries.identity) : entries.identity;
  if (typeof identity !== "string" || !identity || identity.includes("\0") || !identity.isWellFormed()) {
    throw new WrongAnswer("authenticate returned no user: its identity is no text that can be stored");
  }
  if (identity === STUDIO_IDENTITY && entries.kind === STUDIO_KIND) {
    delete entries.kind; // a project's claims must not turn a user into one of the platform's tools
  }
  const { permissions } = entries;
  return {
    ...entries,
    identity,
    permissions: typeof permissions === "string" ? [permissions] : isArray(permissions) ? permissions : [],
    display_name: String(entries.display_name || identity),
    is_authenticated: Boolean(entries.is_authenticated ?? true),
  };
}

function defaults(identity) {
  return { identity, is_authenticated: true, display_name: identity, permissions: [] };
}

/** Convert a handler's result to a filter; null means no filter. */
function filterOf(result, resource) {
  if (result === undefined || result === null || result === true) {
    return null;
  }
  if (result === false) {
    throw new Denial(403, "Forbidden");
  }
  if (typeof result !== "object" || isArray(result)) {
    throw new WrongAnswer(`Auth handler returned invalid result. Expected a filter or a boolean, got ${typeof result}`);
  }
  if (resource === "store") {
    throw new WrongAnswer("a handler of the store returned a filter: it narrows value.namespace instead");
  }
  const filter = jsonOf(result, "filter");
  return Object.keys(filter).length ? filter : null;
}

/** Convert a value to JSON types. Throws WrongAnswer for a number that JSON does not have, which would become null. */
function jsonOf(value, name) {
  const refuse = (_, part) => {
    if (["bigint", "function", "symbol"].includes(typeof part) || (typeof part === "number" && !Number.isFinite(part))) {
      throw new WrongAnswer(`a handler left a ${name} that is no JSON: ${typeof part}`);
    }
    return part;
  };
  const text = stringify(value, refuse);
  if (text === undefined) {
    throw new WrongAnswer(`a handler left a ${name} that is no JSON`);
  }
  return parse(text);
}

/** Return the refusal that an error of the project's functions stands for; null if it is none. */
function denialOf(error) {
  if (error instanceof Denial) {
    return error;
  }
  const { status, message } = error ?? {};
  if (!Number.isInteger(status) || status < 400 || status > 599) {
    return null;
  }
  const pairs = Object.entries(plain(Object.fromEntries(new Headers(error.headers ?? {}))));
  const headers = Object.fromEntries(pairs.filter(([name, value]) => LINE.test(`${name}${value}`)));
  return new Denial(status, String(message || "Forbidden"), headers);
}
