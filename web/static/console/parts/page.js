// The frame of a page: where it is, its title, what can be done there.

import { html } from "../core/dom.js";

/**
 * @param {{title: any, crumbs?: {label: string, href?: string}[], actions?: any, status?: any, children?: any}} props
 */
export function Page({ title, crumbs = [], actions, status, children }) {
  return html`
    <header class="page-head">
      ${crumbs.length > 0 && html`<nav class="crumbs" aria-label="Breadcrumbs"><ol>${crumbs.map(crumb)}</ol></nav>`}
      <div class="page-title"><h1>${title}</h1>${status}${actions && html`<div class="actions">${actions}</div>`}</div>
    </header>
    ${children}`;
}

/** @param {{label: string, href?: string}} props */
const crumb = ({ label, href }) => html`<li key=${label}>${href ? html`<a href=${href}>${label}</a>` : label}</li>`;
