/**
 * Calls of user code to its own deployment: the `fetch` of SDK clients without an address.
 *
 * Requests go over the socket, and the runner makes them, because user code has no API key of the platform. Each request
 * names the user of the run or request that it is made in. The deployment's authorization then checks that user. A request
 * of a run also names the run, so that the runs it creates have their own capacity (`shared/runs/nesting.py`).
 */

import { current } from "../current.mjs";
import * as frames from "../frames.mjs";
import { parseDocument } from "../json.mjs";
import { bodyOf, reasonOf } from "./exchanges.mjs";

const { Headers, Request, Response } = globalThis;

const ADDRESS = "http://localhost:8123"; // never connected to
// Headers that the runner sets itself. An API key in the deployment's variables is meant for another service.
const LEFT_OUT = new Set(["host", "connection", "transfer-encoding", "accept-encoding", "content-length", "x-api-key"]);
const PARENT_RUN = "x-runyard-parent-run"; // as in shared/runs/nesting.py
const LAST = [frames.END, frames.FAILED, frames.CLOSE];
const WITHOUT_BODY = new Set([101, 204, 205, 304]);

/**
 * Make SDK clients without an address call this deployment. Must be called before user code is loaded.
 *
 * @param {import("./exchanges.mjs").Exchanges} exchanges
 * @param {string} mountPrefix path below which the deployment's API is mounted
 * @param {() => boolean} isServing
 */
export function install(exchanges, mountPrefix, isServing) {
  globalThis[Symbol.for("langgraph_api:url")] = ADDRESS;
  globalThis[Symbol.for("langgraph_api:fetch")] = async (input, options) => {
    if (!isServing()) {
      throw new TypeError("the deployment does not serve yet: it is being loaded");
    }
    const replay = current()?.replay;
    if (replay !== undefined) {
      replay.reportNetwork(`${options?.method ?? "GET"} ${new URL(input?.url ?? input, ADDRESS).pathname}`);
      throw new TypeError("a replay makes no requests to its deployment");
    }
    return await send(exchanges, mountPrefix, new Request(new URL(input?.url ?? input, ADDRESS), options));
  };
}

async function send(exchanges, mountPrefix, request) {
  const { pathname, search } = new URL(request.url);
  const exchange = exchanges.begin(undefined, LAST);
  const abort = () => exchange.finish(frames.CLOSE, {});
  request.signal.throwIfAborted();
  request.signal.addEventListener("abort", abort, { once: true });
  exchange.open({
    type: "http",
    method: request.method,
    path: mountPrefix + pathname,
    query: search.slice(1),
    headers: headersOf(request),
    user: current()?.user ?? null,
  });
  try {
    await sendBody(exchange, request);
    const [kind, data] = await exchange.part();
    request.signal.throwIfAborted();
    if (kind !== frames.HEAD) {
      throw new TypeError(reasonOf(data));
    }
    const { status, headers } = parseDocument(data);
    const body = WITHOUT_BODY.has(status) || request.method === "HEAD" ? null : bodyOf(exchange, abort);
    return new Response(body, { status, headers: new Headers(headers) });
  } catch (error) {
    abort();
    throw error;
  }
}

function headersOf(request) {
  const headers = [...request.headers].filter(([name]) => !LEFT_OUT.has(name));
  const run = current();
  if (run?.isRun && !request.headers.has(PARENT_RUN)) {
    headers.push([PARENT_RUN, uuidOf(run.id)]);
  }
  return headers;
}

async function sendBody(exchange, request) {
  for await (const part of request.body ?? []) {
    await exchange.sendBody(part);
  }
  await exchange.send(frames.END);
}

function uuidOf(id) {
  return id.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
