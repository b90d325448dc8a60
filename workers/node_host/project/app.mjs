/**
 * The project's apps (`http.app`, `http.apps`): anything with a `fetch` method that takes a Request, such as an app of Hono.
 *
 * Bodies are streams in both directions. A client that disconnects aborts the request's signal.
 */

import { storage as currentStorage } from "../current.mjs";
import * as frames from "../frames.mjs";
import { stringify } from "../json.mjs";
import { LoadFailed, loadObject } from "../loading.mjs";
import { LOGGER, userStack } from "../output.mjs";
import { describeApps } from "./app_description.mjs";
import { bodyOf } from "./exchanges.mjs";

const { AbortController, Headers, Request, Response } = globalThis;

const FAILED = { message: "the project's app failed" }; // the only detail that the caller receives
const NO_APP = { fetch: async () => new Response("404 Not Found", { status: 404 }) };
const WITHOUT_BODY = new Set(["GET", "HEAD"]);

/** The project's apps, and their requests in progress. */
class Apps {
  #app; // null if there are mounted apps alone
  #mounted; // pairs of path and app
  #exchanges;
  #limiter;

  constructor(app, mounted, exchanges, limiter) {
    this.#app = app;
    this.#mounted = mounted;
    this.#exchanges = exchanges;
    this.#limiter = limiter;
  }

  /** Return the routes of the apps, and what else the build has to know. */
  describe() {
    return describeApps(this.#app, this.#mounted, this.#limiter);
  }

  /** Handle a request of a client. */
  async open(id, head) {
    const exchange = this.#exchanges.begin(id);
    if (head.type !== "http") {
      exchange.finish(frames.FAILED, { message: "apps of JavaScript projects have no WebSockets" });
      return;
    }
    const acting = { __proto__: null, id: frames.NOBODY, isOver: true, user: head.user ?? null };
    try {
      await currentStorage.run(acting, () => this.#answer(exchange, head));
    } catch (error) {
      if (!exchange.isClosed) {
        const text = `http.app failed at ${head.method} ${head.path}\n${userStack(error)}`;
        this.#limiter.emit("ERROR", LOGGER, text, frames.NOBODY);
      }
      exchange.finish(frames.FAILED, FAILED);
    }
  }

  async #answer(exchange, head) {
    const abort = new AbortController();
    exchange.onClose = () => abort.abort();
    const [app, prefix] = this.#appOf(head);
    const response = await app.fetch(requestOf(exchange, head, prefix, abort.signal));
    const headers = [...response.headers];
    await exchange.send(frames.HEAD, stringify({ status: response.status, headers }));
    for await (const part of response.body ?? []) {
      if (exchange.isClosed) {
        break; // the client has disconnected, which ends the app's stream
      }
      await exchange.sendBody(part);
    }
    exchange.finish(frames.END);
  }

  /** Return the app that answers a request, and the path below which it is mounted: the longest one. */
  #appOf(head) {
    const path = pathOf(head);
    const [prefix, app] = this.#mounted
      .filter(([each]) => path === each || path.startsWith(`${each}/`))
      .reduce((best, each) => (each[0].length > best[0].length ? each : best), ["", this.#app ?? NO_APP]);
    return [app, prefix];
  }
}

/**
 * Load the project's apps. Throws LoadFailed.
 *
 * @param {{app?: string, apps?: Record<string, string>}} http the project's `http` configuration
 * @param {import("./exchanges.mjs").Exchanges} exchanges
 * @param {import("../output.mjs").Limiter} limiter
 */
export async function load({ app, apps }, exchanges, limiter) {
  const loaded = app ? await loadApp("http.app", app) : null;
  /** @type {[string, any][]} */
  const mounted = [];
  for (const [path, location] of Object.entries(apps ?? {})) {
    mounted.push([path, await loadApp(`http.apps.${path}`, location)]);
  }
  return new Apps(loaded, mounted, exchanges, limiter);
}

async function loadApp(key, location) {
  const app = await loadObject(key, location);
  if (typeof app?.fetch !== "function") {
    throw new LoadFailed(`${key}: ${location} has no method 'fetch'`);
  }
  return app;
}

function pathOf({ raw_path: rawPath, path }) {
  return rawPath || path;
}

/**
 * Return the request for an app. Its path is the one below the deployment's address, or below the path at which the app is
 * mounted. The header X-Forwarded-Prefix holds the part before it.
 */
function requestOf(exchange, head, prefix, signal) {
  const { method, scheme = "http", query } = head;
  const headers = new Headers(head.headers.filter(([name]) => !name.startsWith(":")));
  if (prefix) {
    headers.set("x-forwarded-prefix", `${headers.get("x-forwarded-prefix") ?? ""}${prefix}`);
  }
  const path = `${pathOf(head).slice(prefix.length) || "/"}${query ? `?${query}` : ""}`;
  const url = new URL(`${scheme}://${headers.get("host") ?? "localhost"}${path}`);
  const body = WITHOUT_BODY.has(method) ? {} : { body: bodyOf(exchange, () => {}), duplex: "half" };
  return new Request(url, /** @type {any} */ ({ method, headers, signal, ...body }));
}
