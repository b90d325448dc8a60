// The head of a page: breadcrumbs, title, status and actions; below it the page's content.

import { currentDeployment, useReplayed } from "../core/deployments.js";
import { html } from "../core/dom.js";
import { href, location_ } from "../core/router.js";

/** @typedef {{label: string, href?: string}} Crumb */

/**
 * The breadcrumbs of a page below `/d/:name` begin with its deployment.
 * @param {{title: any, crumbs?: Crumb[], actions?: any, status?: any, children?: any}} props
 */
export function Page({ title, crumbs = [], actions, status, children }) {
  const { name } = location_.value.params;
  const shown = withDeployment(crumbs, name, currentDeployment.value, useReplayed(name));
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
 * @param {string | null} [replayed] The deployment whose runs are replayed at this one, a bench.
 * @returns {Crumb[]}
 */
export function withDeployment(crumbs, name, record, replayed = null) {
  if (!name) return crumbs;
  const rest = crumbs[0]?.label === name ? crumbs.slice(1) : crumbs;
  if (replayed !== null) return [{ label: replayed }, { label: "Replays", href: href(["d", replayed, "replays"]) }, ...rest];
  return [{ label: name, href: record?.name === name ? href(["deployments", record.id]) : undefined }, ...rest];
}

/** @param {Crumb} props @param {number} at */
const crumb = ({ label, href }, at) => html`<li key=${at}>${href ? html`<a href=${href}>${label}</a>` : label}</li>`;
