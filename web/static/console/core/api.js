// Calls of the public API: `control` at the service's root, `deployment(name)` at a deployment's address.

import { can, cookies, credentials, isSignedIn, refused } from "./session.js";
import { events } from "./sse.js";

const ROOT = new URL("../../../../../", import.meta.url);
const TRIES = 3;
const LONGEST_PAUSE_SECONDS = 20;

/** @typedef {{loc: (string | number)[], msg: string, type?: string}} BadField */
/** @typedef {Record<string, string | number | boolean | null | undefined | (string | number)[]>} Query */
/** @typedef {{query?: Query, body?: any, signal?: AbortSignal, headers?: Record<string, string>}} CallOptions */
/** @typedef {{method?: string, query?: Query, body?: any, lastEventId?: string, signal?: AbortSignal}} StreamOptions */

/** A refused call. Status 0: the service was not reached. */
class ApiError extends Error {
  /** @param {number} status @param {string} detail @param {BadField[]} fields */
  constructor(status, detail, fields = []) {
    super(detail);
    this.status = status;
    this.detail = detail;
    this.fields = fields;
  }
}

/** Whether the component that sent a call has aborted it. @param {any} error */
export const isAborted = (error) => error?.name === "AbortError";

/** Whether the same call may succeed later: the service was not reached, or it was busy. @param {any} error */
export const isTemporary = (error) => [0, 429, 502, 503, 504].includes(error?.status);

/**
 * Call the control plane: `control("GET", "/v2/deployments", {query: {limit: 20}})`. Returns null for a response without a body.
 * @param {string} method @param {string} path @param {CallOptions} options
 * @returns {Promise<any>}
 */
export async function control(method, path, options = {}) {
  try {
    return await bodyOf(await send(method, calledAt(path, options.query), options));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401 && isSignedIn()) await refused(error.detail);
    throw error;
  }
}

/** Stream events of the control plane. @param {string} path @param {StreamOptions} options */
export async function* controlStream(path, options = {}) {
  yield* eventsOf(calledAt(path, options.query), options, {});
}

/**
 * The API of a deployment. If the project has its own `auth`, calls are those of a developer.
 * @param {string} name
 */
export function deployment(name) {
  const own = { "x-auth-scheme": "langsmith" };
  /** @param {string} path @param {Query} [query] */
  const url = (path, query) => calledAt(`/d/${encodeURIComponent(name)}${known.get(name) ?? ""}${path}`, query);
  return {
    /** The address of a path. It lacks the deployment's mount prefix before the first call. */
    url,
    /** @param {string} method @param {string} path @param {CallOptions} options @returns {Promise<any>} */
    call: async (method, path, options = {}) => bodyOf(await respond(method, path, options)),
    /** Call and return the whole response, with its headers. */
    respond,
    /** @param {string} path @param {StreamOptions} options @returns {AsyncGenerator<import("./sse.js").StreamEvent>} */
    stream: async function* (path, options = {}) {
      await mountOf(name);
      try {
        yield* eventsOf(url(path, options.query), options, own);
      } catch (error) {
        throw await explained(error);
      }
    },
  };

  /** @param {string} method @param {string} path @param {CallOptions} options */
  async function respond(method, path, options = {}) {
    await mountOf(name);
    try {
      return await send(method, url(path, options.query), { ...options, headers: { ...own, ...options.headers } });
    } catch (error) {
      throw await explained(error);
    }
  }
}

/** Explain a 401 of a deployment whose own `auth` refuses a caller that the service accepts. @param {any} error */
async function explained(error) {
  if (!(error instanceof ApiError) || error.status !== 401 || !isSignedIn()) return error;
  await control("GET", "/v2/me"); // signs out if the key or session itself has ended
  const why = can("run")
    ? "This deployment's own auth decides who may call it, and accepts no callers of the service."
    : "This deployment's own auth decides who may call it. Of the service's callers, it accepts those with the role run or higher.";
  return new ApiError(error.status, `${why} Its answer: ${error.detail}`, error.fields);
}

/** @type {Map<string, Promise<string>>} */
const mounts = new Map();

/** @type {Map<string, string>} */
const known = new Map();

/** The path below which a deployment answers: the `mount_prefix` of its langgraph.json. @param {string} name */
function mountOf(name) {
  let found = mounts.get(name);
  if (!found) {
    found = publicAddress(name).then((address) => mountIn(address, name));
    found.then((mount) => known.set(name, mount), () => mounts.delete(name));
    mounts.set(name, found);
  }
  return found;
}

/** The public address of a deployment or of a bench, which no list of deployments has. @param {string} name @returns {Promise<string | undefined>} */
async function publicAddress(name) {
  const record = isBench(name) ? await replayedAt(name) : undefined;
  if (!record) return (await control("GET", "/v2/deployments", { query: { name, limit: 1 } })).resources[0]?.source_config?.custom_url;
  for await (const replays of pages((page) => control("GET", `/v2/deployments/${record.id}/replays`, { query: page }))) {
    const found = replays.find(({ bench }) => bench === name);
    if (found) return found.address;
  }
  return undefined;
}

/** The end of the name of a bench: the hidden deployment with the cases of a replay, which can only be read. */
const BENCH = /--replay-[0-9a-f]{8}$/;

/** Whether a name is that of a bench. @param {string} name */
export const isBench = (name) => BENCH.test(name);

/** @type {Map<string, Promise<any>>} */
const originals = new Map();

/** The record of the deployment whose runs are replayed at a bench. The name of a bench may have only its beginning. @param {string} name @returns {Promise<any | undefined>} */
export function replayedAt(name) {
  let found = originals.get(name);
  if (!found) {
    found = control("GET", "/v2/deployments", { query: { replayed_at: name, limit: 1 } }).then(({ resources }) => resources[0]);
    found.catch(() => originals.delete(name));
    originals.set(name, found);
  }
  return found;
}

/** @param {string | undefined} address @param {string} name */
function mountIn(address, name) {
  if (!address) return "";
  const path = new URL(address).pathname.replace(/\/$/, "");
  const prefix = `/d/${encodeURIComponent(name)}`;
  const at = path.indexOf(prefix);
  return at < 0 ? path : path.slice(at + prefix.length);
}

/**
 * Yield the pages of a list in order: `for await (const rows of pages((page) => control("GET", path, {query: page})))`.
 * @template T
 * @param {(page: {limit: number, offset: number}) => Promise<T[] | {resources: T[]}>} fetchPage
 * @returns {AsyncGenerator<T[]>}
 */
export async function* pages(fetchPage, { limit = 100 } = {}) {
  for (let offset = 0; ; offset += limit) {
    const page = await fetchPage({ limit, offset });
    const rows = Array.isArray(page) ? page : page.resources;
    yield rows;
    if (rows.length < limit) return;
  }
}

const STEP = /(^|[/\\])(\.|%2e){1,2}([/\\?#]|$)/i;

/**
 * Return the address of a call. Ids come from links, so a path with a step to another folder is refused.
 * @param {string} path @param {Query} [query]
 */
function calledAt(path, query) {
  if (STEP.test(path.replace(/[\t\n\r]/g, "").split("?", 1)[0])) throw new ApiError(404, "There is nothing at this address.");
  return addressOf(path, query);
}

/** @param {string} path @param {Query} [query] */
export function addressOf(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) url.searchParams.append(name, String(one));
  }
  return url.href;
}

/** @param {string} method @param {string} url @param {CallOptions} options @returns {Promise<Response>} */
async function send(method, url, { body, signal, headers }) {
  for (let attempt = 1; ; attempt++) {
    const answer = await reach(url, { method, signal, body: body === undefined ? undefined : JSON.stringify(body), headers: headersOf(body, headers) });
    if (answer.ok) return answer;
    const pause = Number(answer.headers.get("retry-after"));
    const isBusy = answer.status === 429 || answer.status === 503;
    if (method !== "GET" || !isBusy || !pause || pause > LONGEST_PAUSE_SECONDS || attempt === TRIES) throw await errorOf(answer);
    await sleep(pause * 1000, signal);
  }
}

/** @param {any} body @param {Record<string, string>} [more] */
function headersOf(body, more) {
  return { ...credentials(), ...(body !== undefined && { "content-type": "application/json" }), ...more };
}

/** @param {string} url @param {RequestInit} options */
async function reach(url, options) {
  try {
    // A project's app could redirect the call, with its key or CSRF token, to another route of the service.
    return await fetch(url, { ...options, cache: "no-store", credentials: cookies(), redirect: "error" });
  } catch (error) {
    if (isAborted(error)) throw error;
    throw new ApiError(0, "Cannot reach the service.");
  }
}

/** @param {string} url @param {StreamOptions} options @param {Record<string, string>} headers */
async function* eventsOf(url, { method = "GET", body, lastEventId, signal }, headers) {
  const more = { ...headers, accept: "text/event-stream", ...(lastEventId && { "last-event-id": lastEventId }) };
  const answer = await send(method, url, { body, signal, headers: more });
  if (answer.body) yield* events(answer.body);
}

/** @param {Response} answer */
async function bodyOf(answer) {
  const text = await answer.text();
  if (!text) return null;
  return (answer.headers.get("content-type") ?? "").includes("json") ? JSON.parse(text) : text;
}

/** @param {Response} answer */
async function errorOf(answer) {
  const { detail } = await answer.json().catch(() => ({}));
  if (Array.isArray(detail)) return new ApiError(answer.status, detail.map(sentenceOf).join("; "), detail);
  return new ApiError(answer.status, typeof detail === "string" ? detail : `The service answered ${answer.status}.`);
}

/** @param {BadField} field */
function sentenceOf({ loc, msg }) {
  const name = (loc ?? []).filter((part) => part !== "body" && part !== "query").join(".");
  return name ? `${name}: ${msg}` : msg;
}

/** @param {number} milliseconds @param {AbortSignal} [signal] @returns {Promise<void>} */
export function sleep(milliseconds, signal) {
  return new Promise((done, failed) => {
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      failed(signal.reason);
    }, { once: true });
  });
}
