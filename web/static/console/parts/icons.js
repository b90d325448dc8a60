// Icons: outlines on a grid of 16 units, drawn in the colour of the text around them.

import { html } from "../core/dom.js";

/** The outline of each icon, in the syntax of an SVG path. */
export const ICONS = /** @type {const} */ ({
  alert: "M8 2.2l6.3 11.3H1.7zM8 6.6v3M8 11.6v.1",
  assistants: "M3 6h10v7H3zM8 6V3.4M6.6 2.6h2.8M6 9v1M10 9v1M1.4 8.4v2.2M14.6 8.4v2.2",
  audit: "M3.5 2h6l3 3v9h-9zM9.5 2v3h3M5.8 8h4.4M5.8 10.8h4.4",
  check: "M3 8.6l3.3 3.2L13 4.8",
  clock: "M8 2a6 6 0 1 0 0 12A6 6 0 1 0 8 2zM8 4.7V8l2.3 1.6",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M5.8 5.8h7.7v7.7H5.8zM10.2 5.8V2.5H2.5v7.7h3.3",
  dark: "M13.6 9.6A5.9 5.9 0 0 1 6.4 2.4a5.9 5.9 0 1 0 7.2 7.2z",
  deployment: "M8 1.8l5.6 3v6.4L8 14.2l-5.6-3V4.8zM2.4 4.8L8 7.8l5.6-3M8 7.8v6.4",
  docs: "M8 4c-1.4-1-3.3-1.5-5.5-1.5v10c2.2 0 4.1.5 5.5 1.5 1.4-1 3.3-1.5 5.5-1.5v-10C11.3 2.5 9.4 3 8 4zM8 4v10",
  failed: "M8 2a6 6 0 1 0 0 12A6 6 0 1 0 8 2zM6 6l4 4M10 6l-4 4",
  inbox: "M2 9h3.3l1 2h3.4l1-2H14M2 9l2-5.6h8L14 9v4H2z",
  key: "M10.3 2a3.7 3.7 0 1 1-1.2 7.2l-1.4 1.5H6.2v1.5H4.7v1.5H2v-2.4l4.8-4.8A3.7 3.7 0 0 1 10.3 2zM10.9 5v.1",
  light: "M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 1 0 0-5.6zM8 1.4v1.3M8 13.3v1.3M1.4 8h1.3M13.3 8h1.3M3.3 3.3l1 1M11.7 11.7l1 1M3.3 12.7l1-1M11.7 4.3l1-1",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  organizations: "M3 14V2.4h6.2V14M9.2 6H13v8M1.5 14h13M5.3 5.3h1.6M5.3 8h1.6M5.3 10.7h1.6",
  overview: "M2.5 2.5H7V7H2.5zM9 2.5h4.5v3H9zM9 7.6h4.5v5.9H9zM2.5 9H7v4.5H2.5z",
  paused: "M5.5 3.5v9M10.5 3.5v9",
  playground: "M2 3h12v10H2zM6.6 5.7v4.6L10.4 8z",
  plus: "M8 3v10M3 8h10",
  providers: "M5.5 2v3M10.5 2v3M4 5h8v3a4 4 0 0 1-8 0zM8 12v2.4",
  refresh: "M13.5 2.6v3.6h-3.6M13.2 6.2A5.6 5.6 0 1 0 13.6 9",
  replays: "M2.5 8a5.5 5.5 0 1 0 1.8-4.1L2.5 5.6M2.5 2.4v3.2h3.2M6.8 5.8v4.4L10.4 8z",
  runs: "M1.5 8h3l2-5.2 3 10.4 2-5.2h3",
  search: "M7 2.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 1 0 0-9zM10.3 10.3L14 14",
  signout: "M6.5 2.5h-4v11h4M10 5l3.2 3L10 11M13.2 8H6",
  store: "M3 4c0-1.1 2.2-2 5-2s5 .9 5 2-2.2 2-5 2-5-.9-5-2zM3 4v8c0 1.1 2.2 2 5 2s5-.9 5-2V4M3 8c0 1.1 2.2 2 5 2s5-.9 5-2",
  system: "M2 3h12v8H2zM5.5 14h5M8 11v3",
  threads: "M2.5 3h11v8H7.2l-3 2.6V11H2.5z",
  usage: "M2.5 13.5h11M4.3 11V7.6M8 11V3M11.7 11V5.6",
  webhooks: "M14 2L7 9M14 2L9.6 14 7 9 2 6.4z",
  workers: "M4.5 4.5h7v7h-7zM6.5 2v2.5M9.5 2v2.5M6.5 11.5V14M9.5 11.5V14M2 6.5h2.5M2 9.5h2.5M11.5 6.5H14M11.5 9.5H14",
});

/** The mark of runyard, as in index.html. */
export const Mark = () => html`<svg class="mark" viewBox="0 0 16 16" aria-hidden="true"><rect width="16" height="16" rx="3" /><path d="M4 4l4 4-4 4M9 12h4" /></svg>`;

/**
 * An icon beside a text. Screen readers skip it, so a control with an icon alone needs a label.
 * @param {{name: keyof typeof ICONS}} props
 */
export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${ICONS[name]} /></svg>`;
