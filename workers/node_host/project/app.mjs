/**
 * The project's app (`http.app`): anything with a `fetch` method that takes a Request, such as an app of Hono.
 *
 * Bodies are streams in both directions. A client that disconnects aborts the request's signal.
 */

import { storage as currentStorage } from "../current.mjs";
import * as frames from "../frames.mjs";
import { stringify } from "../json.mjs";
import { LoadFailed, loadObject } from "../loading.mjs";
import { LOGGER, userStack } from "../output.mjs";
import { bodyOf } from "./exchanges.mjs";

const { AbortController, Headers, Request } = globalThis;

const KEY = "http.app";
const FAILED = { message: "the project's app failed" }; // the only detail that the caller receives
const WHOLE = { path: "", methods: [], kind: "mount" };
const COMPOSED = "__COMPOSED_HANDLER"; // Hono's name for the handler within a composed one
const WITHOUT_BODY = new Set(["GET", "HEAD"]);
const PLAIN_PREFIX = /^(?:\/[\w.~-]+|\/:\w+)+\/\*$/;
const METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];

/** The project's app, and its requests in progress. */
class App {
  #app;
  #exchanges;
  #limiter;

  constructor(app, exchanges, limiter) {
    this.#app = app;
    this.#exchanges = exchanges;
    this.#limiter = limiter;
  }

  /** Return the app's routes. All paths are those of an app that has no list of routes. */
  describe() {
    const { routes } = this.#app;
    if (!Array.isArray(routes)) {
      return { routes: [WHOLE], openapi: this.#openApi([]), middleware: [], cors: null };
    }
    const mounting = mountingText(this.#app);
    const isMount = (route) => textOfHandler(route) === mounting;
    const isMiddleware = (route) => !isMount(route) && passesOn(route);
    const middleware = routes.filter(isMiddleware).map(({ handler, path }) => [handler?.name || "middleware", prefixOf(path)]);
    const described = uniqueRoutes(
      routes.filter((route) => !isMiddleware(route)).flatMap((route) => (isMount(route) ? mountOf(route) : routeOf(route))),
    );
    return {
      routes: described,
      openapi: this.#openApi(described),
      middleware: [...new Map(middleware.map((pair) => [pair.join(" "), pair])).values()],
      cors: null,
    };
  }

  /** Return the document of an app of @hono/zod-openapi, or one generated from the routes. */
  #openApi(routes) {
    const make = this.#app.getOpenAPI31Document;
    if (typeof make === "function") {
      try {
        const { info, ...document } = make.call(this.#app, { openapi: "3.1.0", info: { title: "", version: "" } });
        return document;
      } catch (error) {
        const text = `http.app: its OpenAPI document cannot be made\n${userStack(error)}`;
        this.#limiter.emit("WARNING", LOGGER, text, frames.NOBODY);
      }
    }
    const paths = {};
    for (const { path, methods } of routes.filter(({ kind }) => kind === "http")) {
      const operations = methods.map((method) => [method.toLowerCase(), operation(method, plain(path))]);
      paths[plain(path)] = { ...paths[plain(path)], ...Object.fromEntries(operations) };
    }
    return Object.keys(paths).length ? { openapi: "3.1.0", paths } : null;
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
    const response = await this.#app.fetch(requestOf(exchange, head, abort.signal));
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
}

/** Load the project's app. Throws LoadFailed. */
export async function load(location, exchanges, limiter) {
  const app = await loadObject(KEY, location);
  if (typeof app?.fetch !== "function") {
    throw new LoadFailed(`${KEY}: ${location} has no method 'fetch'`);
  }
  return new App(app, exchanges, limiter);
}

/** Return the request for an app. Its path is the one below the deployment's address, which the app's routes have. */
function requestOf(exchange, head, signal) {
  const { method, scheme = "http", query } = head;
  const headers = new Headers(head.headers.filter(([name]) => !name.startsWith(":")));
  const path = `${head.raw_path || head.path}${query ? `?${query}` : ""}`;
  const url = new URL(`${scheme}://${headers.get("host") ?? "localhost"}${path}`);
  const body = WITHOUT_BODY.has(method) ? {} : { body: bodyOf(exchange, () => {}), duplex: "half" };
  return new Request(url, /** @type {any} */ ({ method, headers, signal, ...body }));
}

/** Whether an entry in Hono's list of routes is for all methods of a prefix, and takes `next`: middleware or a mounted app. */
function passesOn({ method, path, handler }) {
  return method === "ALL" && path.endsWith("*") && handler?.length !== 1;
}

/**
 * Return the source text of the handler with which Hono calls a mounted app; undefined if the app cannot mount others.
 *
 * Hono lists a mounted app as it lists middleware, and nothing but the text of this function tells them apart.
 */
function mountingText(app) {
  if (typeof app.mount !== "function") {
    return undefined;
  }
  try {
    const probe = new app.constructor();
    probe.mount("/", () => {});
    return textOfHandler(probe.routes.at(-1));
  } catch {
    return undefined; // a class of the project that needs arguments
  }
}

/** Return the source text of an entry's handler, within the function that a part with its own `onError` has around it. */
function textOfHandler({ handler }) {
  return String(handler?.[COMPOSED] ?? handler).replace(/\s+/g, " ");
}

/** Return the path below which middleware runs: "/", which is everywhere, unless its pattern is plain. */
function prefixOf(path) {
  return PLAIN_PREFIX.test(path) ? braced(path.replace(/\/\*$/, "")) : "/";
}

/** Return the route of a mounted app. */
function mountOf({ path }) {
  return [{ path: braced(path.replace(/\/?\*$/, "")), methods: [], kind: "mount" }];
}

/** Return the routes of an entry in Hono's list, with its parameters in braces. */
function routeOf({ method, path }) {
  const methods = method === "ALL" ? METHODS : [method];
  const optional = /\/:[^/]+\?$/;
  const paths = optional.test(path) ? [path.replace(optional, "") || "/", path.slice(0, -1)] : [path];
  return paths.map((each) => ({ path: braced(each), methods, kind: "http" }));
}

/** Return each path once, with the methods of all entries: Hono lists the middleware of a route as entries of their own. */
function uniqueRoutes(routes) {
  const byPath = new Map();
  for (const { path, methods, kind } of routes) {
    const key = `${kind} ${path}`;
    const known = byPath.get(key)?.methods ?? [];
    byPath.set(key, { path, methods: [...new Set([...known, ...methods])], kind });
  }
  return [...byPath.values()];
}

/** Return the path of a route as OpenAPI writes it. */
function plain(path) {
  return path.replace(":path}", "}");
}

function operation(method, path) {
  const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
  return {
    operationId: `app_${method.toLowerCase()}${path}`.replace(/\W+/g, "_").replace(/_$/, ""),
    summary: `${method} ${path}`,
    tags: ["App"],
    parameters: names.map((name) => ({ in: "path", name, required: true, schema: { type: "string" } })),
    responses: { default: { description: "The answer of the app" } },
  };
}

function braced(path) {
  return path.replace(/:(\w+)(?:\{[^}]*\})?/g, "{$1}").replace(/\*$/, "{rest:path}");
}
