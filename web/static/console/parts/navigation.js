// The navigation beside every page: pages of the service, pages of the current deployment, the theme and the account.

import { currentDeployment, useDeploymentResource } from "../core/deployments.js";
import { html, useEffect, useId, useState } from "../core/dom.js";
import { href, location_ } from "../core/router.js";
import { can, isDev, isSignedIn, leave, me, signOut } from "../core/session.js";
import { followOpenQuestions } from "../core/inbox.js";
import { THEMES, setTheme, theme } from "../core/theme.js";
import { Button } from "./forms.js";
import { Icon, Mark } from "./icons.js";
import { kindOf } from "./small.js";
import { standingOf } from "./standing.js";

/** @typedef {import("../main.js").Route} Route */
/** @typedef {"service" | "deployment" | "administration"} Group */
/** @typedef {NonNullable<Route["nav"]> & {icon: keyof typeof import("./icons.js").ICONS}} Entry */

const STATUS_EVERY_MS = 15_000;
/** The entries of each group in their order, with their icons. @type {Record<Group, Record<string, keyof typeof import("./icons.js").ICONS>>} */
const GROUPS = {
  service: { Inbox: "inbox", Overview: "overview", Usage: "usage", Workers: "workers" },
  deployment: {
    Deployment: "deployment", Playground: "playground", Threads: "threads", Runs: "runs", Replays: "replays",
    Assistants: "assistants", Crons: "clock", Store: "store", Webhooks: "webhooks",
  },
  administration: { "API keys": "key", "OAuth providers": "providers", Organizations: "organizations", "Audit log": "audit" },
};

/** @param {{routes: Route[], onSearch: () => void}} props */
export function Navigation({ routes, onSearch }) {
  const { path, params } = location_.value;
  const [isOpen, setOpen] = useState(false);
  useEffect(followOpenQuestions, []);
  useEffect(() => setOpen(false), [path]);
  const id = path.startsWith("/deployments/") ? params.id : undefined;
  const { data: record, loading } = useDeploymentResource({ name: params.name, id }, params.name || id ? { every: STATUS_EVERY_MS } : {});
  // The group has its place before the record is loaded: the entries below it would move otherwise.
  const current = record ?? (loading && (params.name || id) ? { name: params.name, id } : null);
  useEffect(() => void (currentDeployment.value = record ?? null), [record]);
  const list = (/** @type {Group} */ at) => html`<ul>${entriesOf(routes, at).map((entry) => html`<${Link} key=${entry.label} entry=${entry} path=${path} deployment=${current} />`)}</ul>`;
  return html`
    <nav class=${isOpen ? "side open" : "side"} aria-label="Main">
      <div class="side-inner">
        <div class="side-head">
          <a class="brand" href="#/"><${Mark} />runyard</a>
          <${SearchButton} onClick=${onSearch} />
          <button type="button" class="menu" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}><${Icon} name=${isOpen ? "close" : "menu"} />Menu</button>
        </div>
        <div class="side-body">
          ${list("service")}
          ${current && html`<${CurrentDeployment} record=${current} />${list("deployment")}`}
          <p class="side-group"><span>Administration</span></p>
          ${list("administration")}
          <div class="side-foot"><${ThemeSwitch} /><${Account} /></div>
        </div>
      </div>
    </nav>`;
}

/**
 * The entries of a group that the caller's role may see, in their order.
 * @param {Route[]} routes @param {Group} group
 * @returns {Entry[]}
 */
export function entriesOf(routes, group) {
  return Object.entries(GROUPS[group]).flatMap(([label, icon]) => {
    const nav = routes.find((route) => route.nav?.label === label)?.nav;
    return nav && can(nav.role ?? "read") ? [{ ...nav, icon }] : [];
  });
}

/**
 * The address of an entry; undefined while the name or the id of its deployment is not known.
 * @param {Entry} entry @param {{id?: string, name?: string} | null} [deployment]
 */
export function addressOfEntry(entry, deployment) {
  const { id, name } = deployment ?? {};
  const path = entry.path.replace(":name", name ? encodeURIComponent(name) : ":name").replace(":id", id ?? ":id");
  return path.includes("/:") ? undefined : href(path);
}

/** @param {{entry: Entry, path: string, deployment: any}} props */
function Link({ entry, path, deployment }) {
  return html`<li><a href=${addressOfEntry(entry, deployment)} aria-current=${isIn(path, entry.path) ? "page" : undefined}><${Icon} name=${entry.icon} /><span>${entry.label}</span>${entry.count?.value ? html`<span class="nav-count">${entry.count.value.toLocaleString("en")}</span>` : ""}</a></li>`;
}

/** Whether a path belongs to a page or to a page below it. @param {string} path @param {string} pattern */
function isIn(path, pattern) {
  if (pattern === "/") return path === "/";
  return new RegExp(`^${pattern.replace(/:\w+/g, "[^/]+")}(/|$)`).test(path);
}

/** The deployment's name with a dot in the colour of its status. @param {{record: any}} props `record` has only a name or an id while it loads */
function CurrentDeployment({ record }) {
  const [{ status }] = !record.status ? [{ status: "loading" }] : standingOf({ status: record.status, serving: record.active_revision_number, newest: record.latest_revision_number, newestStatus: record.latest_revision_status });
  return html`<h2 class="side-group of-deployment" title=${record.name}><i class=${`dot ${kindOf(status)}`} title=${status}></i><span>${record.display_name ?? record.name ?? "Deployment"}</span></h2>`;
}

/** @param {{onClick: () => void}} props */
function SearchButton({ onClick }) {
  const keys = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘ K" : "Ctrl K";
  return html`<button type="button" class="side-search" aria-keyshortcuts="Control+K Meta+K" title=${`Search (${keys})`} onClick=${onClick}><${Icon} name="search" /><span>Search</span><kbd aria-hidden="true">${keys}</kbd></button>`;
}

function ThemeSwitch() {
  const name = useId();
  return html`
    <fieldset class="segments">
      <legend class="unseen">Theme</legend>
      ${THEMES.map(({ value, label, icon }) => html`
        <label key=${value}><input type="radio" name=${name} value=${value} checked=${theme.value === value} onChange=${() => setTheme(value)} /><${Icon} name=${icon} />${label}</label>`)}
    </fieldset>`;
}

/** The address of the documentation, if the installation built it. */
const GUIDE = document.documentElement.dataset.guide === "true" ? new URL("../../../../guide/", import.meta.url).href : null;

function Account() {
  const caller = me.value;
  if (!caller) return null;
  return html`
    <p class="account" title=${`runyard ${caller.version}`}><b>${caller.organization.name}</b><br /><span class="quiet">${caller.user ? `${caller.user.name}, ` : caller.key ? `${caller.key.name || caller.key.id}, ` : ""}${caller.role}</span></p>
    <div class="account-actions">
      ${GUIDE && html`<a href=${GUIDE} target="_blank" rel="noopener"><${Icon} name="docs" /> Docs</a>`}
      ${isSignedIn() ? html`<${Button} kind="plain" onClick=${leave}>Sign out<//>` : isDev && html`<${Button} kind="plain" title="Needed to deploy and to change variables or limits" onClick=${() => signOut()}>Use a key<//>`}
    </div>`;
}
