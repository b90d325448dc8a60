// The navigation beside every page: the service's pages, and those of the deployment one is in.

import { html, useEffect, useState } from "../core/dom.js";
import { href, location_ } from "../core/router.js";
import { can, isDev, key, me, signOut } from "../core/session.js";
import { useDeployment } from "../core/deployments.js";
import { Button } from "./forms.js";
import { nextTheme, theme } from "../core/theme.js";

/** @typedef {import("../main.js").Route} Route */

/** @param {{routes: Route[]}} props */
export function Navigation({ routes }) {
  const { path, params } = location_.value;
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [path]);
  const found = useDeployment({ name: params.name, id: path.startsWith("/deployments/") ? params.id : undefined });
  const listed = (/** @type {string} */ at) => routes.filter(({ nav }) => nav?.at === at && can(nav.role ?? "read")).map((route) => /** @type {NonNullable<Route["nav"]>} */ (route.nav)).sort(byPlace);
  return html`
    <nav class=${isOpen ? "side open" : "side"} aria-label="Main">
      <div class="side-head">
        <a class="brand" href="#/">runyard</a>
        <button type="button" class="menu" aria-expanded=${String(isOpen)} onClick=${() => setOpen(!isOpen)}>Menu</button>
      </div>
      <div class="side-body">
        <ul>${listed("service").map((nav) => link(nav.label, href(nav.path), isIn(path, nav.path)))}</ul>
        ${found && html`<h2 title=${found.name}>${found.name}</h2>
          <ul>${listed("deployment").map((nav) => link(nav.label, href(nav.path.replace(":name", encodeURIComponent(found.name)).replace(":id", found.id)), isIn(path, nav.path)))}</ul>`}
        <div class="side-foot"><${Account} /></div>
      </div>
    </nav>`;
}

/** As people go: from what is deployed to what it does. */
const ORDER = ["Deployment", "Playground", "Threads", "Runs", "Assistants", "Crons", "Store", "Webhooks", "Overview", "Workers", "Usage"];
const placeOf = (/** @type {string} */ label) => (ORDER.includes(label) ? ORDER.indexOf(label) : ORDER.length);
const byPlace = (/** @type {{label: string}} */ one, /** @type {{label: string}} */ other) => placeOf(one.label) - placeOf(other.label);

/** @param {string} label @param {string} address @param {boolean} isCurrent */
const link = (label, address, isCurrent) => html`<li key=${label}><a href=${address} aria-current=${isCurrent ? "page" : undefined}>${label}</a></li>`;

/** Whether a path is a page's or below it. @param {string} path @param {string} pattern */
function isIn(path, pattern) {
  if (pattern === "/") return path === "/";
  return new RegExp(`^${pattern.replace(/:\w+/g, "[^/]+")}(/|$)`).test(path);
}

/** The documentation, which the service has if its installation built it. */
const GUIDE = document.documentElement.dataset.guide === "true" ? new URL("../../../../guide/", import.meta.url).href : null;

function Account() {
  const found = me.value;
  if (!found) return null;
  return html`
    <p class="account" title=${`runyard ${found.version}`}><b>${found.organization.name}</b><br /><span class="quiet">${found.key ? `${found.key.name || found.key.id}, ` : ""}${found.role}</span></p>
    <div class="account-actions">
      ${GUIDE && html`<a href=${GUIDE} target="_blank" rel="noopener">Docs</a>`}
      <button type="button" class="plain" onClick=${nextTheme} title="Colours">${{ auto: "Auto", light: "Light", dark: "Dark" }[theme.value]}</button>
      ${key() ? html`<${Button} kind="plain" onClick=${() => signOut()}>Sign out<//>` : isDev && html`<${Button} kind="plain" title="To deploy, and to change variables or limits" onClick=${() => signOut()}>Use a key<//>`}
    </div>`;
}
