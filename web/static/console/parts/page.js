// The head of a page: breadcrumbs, title, status and actions; below it the page's content.

import { replayedAt } from "../core/api.js";
import { currentDeployment } from "../core/deployments.js";
import { html } from "../core/dom.js";
import { href, location_ } from "../core/router.js";

/** @typedef {{label: string, href?: string}} Crumb */

/**
 * The breadcrumbs of a page below `/d/:name` begin with its deployment.
 * @param {{title: any, crumbs?: Crumb[], actions?: any, status?: any, children?: any}} props
 */
export function Page({ title, crumbs = [], actions, status, children }) {
  const shown = withDeployment(crumbs, location_.value.params.name, currentDeployment.value);
  return html`
    <header class="page-head">
      ${shown.length > 0 && html`<nav class="crumbs" aria-label="Breadcrumbs"><ol>${shown.map(crumb)}</ol></nav>`}
      <div class="page-title"><h1>${title}</h1>${status}${actions && html`<div class="actions">${actions}</div>`}</div>
    </header>
    ${children}`;
}

/**
 * Breadcrumbs with the deployment first, as a link once its record is loaded.
 * @param {Crumb[]} crumbs @param {string | undefined} name @param {{id: string, name: string} | null} record
 * @returns {Crumb[]}
 */
export function withDeployment(crumbs, name, record) {
  if (!name) return crumbs;
  const rest = crumbs[0]?.label === name ? crumbs.slice(1) : crumbs;
  const replayed = replayedAt(name);
  if (replayed !== null) return [{ label: replayed }, { label: "Replays", href: href(["d", replayed, "replays"]) }, ...rest];
  return [{ label: name, href: record?.name === name ? href(["deployments", record.id]) : undefined }, ...rest];
}

/** @param {Crumb} props @param {number} at */
const crumb = ({ label, href }, at) => html`<li key=${at}>${href ? html`<a href=${href}>${label}</a>` : label}</li>`;
