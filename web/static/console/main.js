// The console: its routes and the frame around every page. The module of a page is loaded when the page is first shown.

import { html, render, useEffect, useErrorBoundary, useRef, useState } from "./core/dom.js";
import { openQuestions } from "./core/inbox.js";
import { loadPage } from "./core/page_loading.js";
import { location_, matcher, start as followAddress } from "./core/router.js";
import { actFor, isStarting, me, start as identifyCaller } from "./core/session.js";
import { remember } from "./core/recent.js";
import { Empty, ErrorBox, Loading, Toasts, Questions } from "./parts/index.js";
import { Mark } from "./parts/icons.js";
import { Navigation } from "./parts/navigation.js";
import { Palette, openPalette } from "./parts/palette.js";
import { SignIn } from "./parts/sign_in.js";

/** @typedef {{path: string, load: () => Promise<any>, nav?: {label: string, at: "service" | "deployment", path: string, role?: string, count?: { value: number | null }}}} Route */

/**
 * In alphabetical order of their paths, but a fixed part precedes a parameter: the first route that matches is shown. `nav` has a page in the
 * navigation.
 * @type {Route[]}
 */
const ROUTES = [
  { path: "/", load: () => import("./pages/overview.js"), nav: { label: "Overview", at: "service", path: "/" } },
  { path: "/audit", load: () => import("./pages/audit.js"), nav: { label: "Audit log", at: "service", path: "/audit" } },
  { path: "/d/:name/assistants", load: () => import("./pages/assistants.js"), nav: { label: "Assistants", at: "deployment", path: "/d/:name/assistants" } },
  { path: "/d/:name/assistants/:id", load: () => import("./pages/assistant.js") },
  { path: "/d/:name/crons", load: () => import("./pages/crons.js"), nav: { label: "Crons", at: "deployment", path: "/d/:name/crons" } },
  { path: "/d/:name/playground(/:graph)", load: () => import("./pages/playground.js"), nav: { label: "Playground", at: "deployment", path: "/d/:name/playground" } },
  { path: "/d/:name/replays", load: () => import("./pages/replays.js"), nav: { label: "Replays", at: "deployment", path: "/d/:name/replays" } },
  { path: "/d/:name/replays/:replay", load: () => import("./pages/replay.js") },
  { path: "/d/:name/replays/:replay/:position", load: () => import("./pages/replay_case.js") },
  { path: "/d/:name/runs", load: () => import("./pages/runs.js"), nav: { label: "Runs", at: "deployment", path: "/d/:name/runs" } },
  { path: "/d/:name/runs/bulk(/:operation)", load: () => import("./pages/bulk_operations.js") },
  { path: "/d/:name/runs/:thread/:run", load: () => import("./pages/run.js") },
  { path: "/d/:name/store", load: () => import("./pages/store.js"), nav: { label: "Store", at: "deployment", path: "/d/:name/store" } },
  { path: "/d/:name/threads", load: () => import("./pages/threads.js"), nav: { label: "Threads", at: "deployment", path: "/d/:name/threads" } },
  { path: "/d/:name/threads/:thread", load: () => import("./pages/thread.js") },
  { path: "/d/:name/webhooks", load: () => import("./pages/webhooks.js"), nav: { label: "Webhooks", at: "deployment", path: "/d/:name/webhooks" } },
  { path: "/deployments/:id", load: () => import("./pages/deployment.js"), nav: { label: "Deployment", at: "deployment", path: "/deployments/:id" } },
  { path: "/device", load: () => import("./pages/device.js") },
  { path: "/inbox", load: () => import("./pages/inbox.js"), nav: { label: "Inbox", at: "service", path: "/inbox", count: openQuestions } },
  { path: "/keys", load: () => import("./pages/keys.js"), nav: { label: "API keys", at: "service", path: "/keys", role: "admin" } },
  { path: "/organizations", load: () => import("./pages/organizations.js"), nav: { label: "Organizations", at: "service", path: "/organizations" } },
  { path: "/providers", load: () => import("./pages/providers.js"), nav: { label: "OAuth providers", at: "service", path: "/providers" } },
  { path: "/usage", load: () => import("./pages/usage.js"), nav: { label: "Usage", at: "service", path: "/usage" } },
  { path: "/workers", load: () => import("./pages/workers.js"), nav: { label: "Workers", at: "service", path: "/workers" } },
];

const matchers = ROUTES.map((route) => ({ route, match: matcher(route.path) }));

/** The route of a path and the parameters in it. @param {string} path */
function routeOf(path) {
  for (const { route, match } of matchers) {
    const params = match(path);
    if (params) return { route, params };
  }
  return null;
}

/** @type {Map<Route, any>} */
const loaded = new Map();

/** The module of a page, loaded if necessary. @param {Route | undefined} route */
function useModule(route) {
  const [state, setState] = useState(/** @type {any} */ ({}));
  useEffect(() => {
    if (!route || loaded.has(route)) return;
    const leaving = new AbortController();
    loadPage(route.load, leaving.signal, (error) => setState({ route, error })).then((module) => {
      loaded.set(route, module);
      setState({});
    }, () => {}); // the reader went to another page
    return () => leaving.abort();
  }, [route]);
  return { module: route && loaded.get(route), error: state.route === route ? state.error : null };
}

function CurrentPage() {
  const { path, params, query } = location_.value;
  const found = routeOf(path);
  const { module, error } = useModule(found?.route);
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const [failure, retry] = useErrorBoundary();
  useEffect(() => {
    document.title = module?.title ? `${module.title(params)} – runyard` : "runyard";
  }, [module, path]);
  useEffect(() => {
    retry();
    main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
    return () => remember(path, document.title);
  }, [path]);
  return html`<main ref=${main} tabindex="-1">${content()}</main>`;

  function content() {
    if (!found) return html`<${Empty} title="There is no such page" text=${path} action=${html`<a href="#/">To the overview</a>`} />`;
    if (error ?? failure) return html`<${ErrorBox} error=${error ?? failure} retry=${error ? () => location.reload() : retry} />`;
    if (!module) return html`<${Loading} />`;
    return html`<${module.default} params=${params} query=${query} />`;
  }
}

function Console() {
  if (isStarting.value) return html`<p class="starting"><${Mark} />runyard</p>`; // as in index.html
  if (!me.value) return html`<${SignIn} />`;
  return html`
    <div class="frame">
      <${Navigation} routes=${ROUTES} onSearch=${openPalette} />
      <${CurrentPage} />
    </div>
    <${Palette} routes=${ROUTES} />
    <${Questions} />
    <${Toasts} />`;
}

followAddress((path) => routeOf(path)?.params ?? {});
const { organization } = location_.peek().query;
if (organization) actFor(organization);
void identifyCaller();
const root = /** @type {HTMLElement} */ (document.getElementById("root"));
root.replaceChildren();
render(html`<${Console} />`, root);
