/**
 * Description of the project's apps during the build: routes, OpenAPI document, middleware and CORS.
 *
 * Routes and middleware are read from the list that an app of Hono keeps. Another app answers all paths.
 */

import * as frames from "../frames.mjs";
import { LOGGER, userStack } from "../output.mjs";

const { Request } = globalThis;

const WHOLE = { path: "", methods: [], kind: "mount" };
const COMPOSED = "__COMPOSED_HANDLER"; // Hono's name for the handler within a composed one
const PLAIN_PREFIX = /^(?:\/[\w.~-]+|\/:\w+)+\/\*$/;
const METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"];
const EVERYWHERE = new Set(["*", "/*"]);
const PROBE = "http://localhost/";
const PROBE_ORIGIN = "https://origin.invalid";

/**
 * Describe the apps as one: `app` (`http.app`), and those of `http.apps`, each of which answers all paths below its own.
 *
 * @param {any} app or null
 * @param {[string, any][]} mounted pairs of path and app
 * @param {import("../output.mjs").Limiter} limiter
 */
export async function describeApps(app, mounted, limiter) {
  const described = app === null ? { routes: [], openapi: null, middleware: [], cors: null } : await describeApp(app, limiter);
  const routes = mounted.map(([path]) => ({ path, methods: [], kind: "mount" }));
  const paths = { ...described.openapi?.paths };
  for (const [prefix, each] of mounted) {
    const { openapi } = await describeApp(each, limiter);
    for (const [path, operations] of Object.entries(openapi?.paths ?? {})) {
      paths[path === "/" ? prefix : prefix + path] = operations;
    }
  }
  const hasPaths = Object.keys(paths).length > 0;
  const openapi = hasPaths ? { openapi: "3.1.0", ...described.openapi, paths } : described.openapi;
  return { ...described, routes: [...routes, ...described.routes], openapi };
}

async function describeApp(app, limiter) {
  const { routes } = app;
  if (!Array.isArray(routes)) {
    return { routes: [WHOLE], openapi: openApi(app, [], limiter), middleware: [], cors: null };
  }
  const mounting = mountingText(app);
  const isMount = (route) => textOfHandler(route) === mounting;
  const isMiddleware = (route) => !isMount(route) && passesOn(route);
  const settings = new Map();
  for (const route of routes.filter((each) => isMiddleware(each) && EVERYWHERE.has(each.path))) {
    settings.set(route, await corsOf(app, route));
  }
  const cors = [...settings].find(([, found]) => found !== null);
  const middleware = routes
    .filter((route) => isMiddleware(route) && route !== cors?.[0])
    .map(({ handler, path }) => [handler?.name || "middleware", prefixOf(path)]);
  const described = uniqueRoutes(
    routes.filter((route) => !isMiddleware(route)).flatMap((route) => (isMount(route) ? mountOf(route) : routeOf(route))),
  );
  return {
    routes: (await answersUnknownPaths(app)) ? [...described, WHOLE] : described,
    openapi: openApi(app, described, limiter),
    middleware: [...new Map(middleware.map((pair) => [pair.join(" "), pair])).values()],
    cors: cors?.[1] ?? null,
  };
}

/**
 * Return the settings of Hono's `cors` that allows every origin, which the web process can apply itself; null for other
 * middleware. Other origins are in functions, which cannot be read.
 */
async function corsOf(app, route) {
  const text = textOfHandler(route);
  if (!["Allow-Origin", "Allow-Methods", "Max-Age"].every((name) => text.includes(`"Access-Control-${name}"`))) {
    return null;
  }
  const headers = { origin: PROBE_ORIGIN, "access-control-request-method": "GET" };
  const probe = new Request(PROBE, { method: "OPTIONS", headers });
  const found = await answerOf(() => new app.constructor().use(route.handler), probe);
  const header = (name) => found?.headers.get(`access-control-${name}`) ?? null;
  const list = (name) => header(name)?.split(",").map((item) => item.trim());
  if (header("allow-origin") !== "*") {
    return null;
  }
  return {
    allow_origins: ["*"],
    allow_methods: list("allow-methods") ?? [],
    allow_headers: list("allow-headers") ?? ["*"], // Hono then allows those that the browser names
    expose_headers: list("expose-headers") ?? [],
    allow_credentials: header("allow-credentials") === "true",
    ...(header("max-age") === null ? {} : { max_age: Number(header("max-age")) }),
  };
}

/**
 * Whether an app of Hono has a `notFound` of its own: it then answers all paths that are not built in. The function is
 * private, so a copy of the app without routes answers a request with it.
 */
async function answersUnknownPaths(app) {
  const withoutRoutes = (of) => () => {
    const copy = of.basePath("/");
    copy.router = { name: "none", add() {}, match: () => [[], []] };
    return copy;
  };
  if (typeof app.notFound !== "function" || typeof app.basePath !== "function") {
    return false;
  }
  const own = await answerOf(withoutRoutes(app), new Request(PROBE));
  const usual = await answerOf(() => withoutRoutes(new app.constructor())(), new Request(PROBE));
  if (own === null || usual === null) {
    return usual !== null; // the project's function failed for this request
  }
  return own.status !== usual.status || (await own.text()) !== (await usual.text());
}

/** Return the answer of an app that a function makes; null if either fails, as a class of the project may. */
async function answerOf(make, request) {
  try {
    return await make().fetch(request);
  } catch {
    return null;
  }
}

/** Return the document of an app of @hono/zod-openapi, or one generated from the routes. */
function openApi(app, routes, limiter) {
  const make = app.getOpenAPI31Document;
  if (typeof make === "function") {
    try {
      const { info, ...document } = make.call(app, { openapi: "3.1.0", info: { title: "", version: "" } });
      return document;
    } catch (error) {
      const text = `http.app: its OpenAPI document cannot be made\n${userStack(error)}`;
      limiter.emit("WARNING", LOGGER, text, frames.NOBODY);
    }
  }
  const paths = {};
  for (const { path, methods } of routes.filter(({ kind }) => kind === "http")) {
    const operations = methods.map((method) => [method.toLowerCase(), operation(method, plain(path))]);
    paths[plain(path)] = { ...paths[plain(path)], ...Object.fromEntries(operations) };
  }
  return Object.keys(paths).length ? { openapi: "3.1.0", paths } : null;
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
