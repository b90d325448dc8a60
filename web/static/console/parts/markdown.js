// Text of models as Markdown. It is never trusted: markup in it is shown as text, and what is made of the rest is sanitized.
// A text that grows is drawn block by block: only blocks that changed are parsed and put into the page again.

import DOMPurify from "../../vendor/dompurify.js";
import { Marked } from "../../vendor/marked.js";
import { html, useLayoutEffect, useMemo, useRef, useState } from "../core/dom.js";
import { bytes, plain } from "../core/format.js";
import { WholeText } from "./code.js";

const SHOWN_CHARACTERS = 100_000;
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,/;
const ADDRESS = /^(https?:|mailto:)/i;

/** @param {string} text */
const escaped = (text) => text.replace(/[&<>"']/g, (each) => `&#${each.charCodeAt(0)};`);

const marked = new Marked({
  gfm: true,
  breaks: true,
  async: false,
  renderer: {
    html: ({ text }) => (/^<br\s*\/?>\s*$/i.test(text) ? "<br>" : escaped(text)),
    image({ href, text, tokens }) {
      const said = escaped(text || "picture");
      if (PICTURE.test(href)) return `<img src="${escaped(href)}" alt="${said}">`;
      return this.link({ type: "link", raw: "", href, title: null, text, tokens: tokens?.length ? tokens : [{ type: "text", raw: text, text: text || href }] });
    },
  },
});

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "input", "li", "ol", "p",
    "pre", "s", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "title", "src", "alt", "align", "start", "type", "checked", "disabled"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_TRUSTED_TYPE: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName === "A") guardLink(/** @type {HTMLAnchorElement} */ (node));
  else if (node.nodeName === "IMG" && !PICTURE.test(node.getAttribute("src") ?? "")) node.remove();
  else if (node.nodeName === "INPUT") guardBox(/** @type {HTMLInputElement} */ (node));
  else if (node.nodeName === "PRE") node.setAttribute("tabindex", "0"); // wide ones are scrolled by keyboard
});

/** @param {HTMLAnchorElement} link */
function guardLink(link) {
  if (!ADDRESS.test(link.getAttribute("href") ?? "")) return link.removeAttribute("href");
  link.setAttribute("target", "_blank");
  link.setAttribute("rel", "noopener noreferrer nofollow");
}

/** A checkbox of a task list. @param {HTMLInputElement} box */
function guardBox(box) {
  box.setAttribute("type", "checkbox");
  box.setAttribute("disabled", "");
  box.setAttribute("aria-label", box.hasAttribute("checked") ? "done" : "to do");
}

/** Markup that may be put into the page, in which what is read is what is there. @param {string} text */
export function markup(text) {
  return DOMPurify.sanitize(/** @type {string} */ (marked.parse(plain(text))), ALLOWED);
}

/** The blocks of a text: paragraphs, lists, code. @param {string} text */
function blocksOf(text) {
  return marked.lexer(text).filter((token) => token.type !== "space").map((token) => token.raw);
}

/**
 * The blocks of a text that grows at its end: all but the last two of them are read only once.
 * @param {{text: string, upTo: number, blocks: string[]}|null} before
 * @param {string} text
 */
function grownBlocks(before, text) {
  const isLonger = before && text.length >= before.text.length && text.startsWith(before.text.slice(0, before.upTo));
  const settled = isLonger ? before.blocks : [];
  const upTo = isLonger ? before.upTo : 0;
  const tokens = marked.lexer(text.slice(upTo));
  const rest = tokens.slice(Math.max(0, tokens.length - 3));
  const firm = tokens.slice(0, tokens.length - rest.length);
  const length = firm.reduce((sum, token) => sum + token.raw.length, 0);
  const raw = (/** @type {any[]} */ list) => list.filter((token) => token.type !== "space").map((token) => token.raw);
  const blocks = [...settled, ...raw(firm)];
  return { text, upTo: upTo + length, blocks, all: [...blocks, ...raw(rest)] };
}

/** @param {{text: string}} props */
function Block({ text }) {
  const place = useRef(/** @type {HTMLElement|null} */ (null));
  const made = useMemo(() => markup(text), [text]);
  useLayoutEffect(() => {
    if (place.current) place.current.innerHTML = /** @type {any} */ (made);
  }, [made]);
  return html`<div class="md-block" ref=${place}></div>`;
}

/**
 * @param {{text: string, growing?: boolean, limit?: number}} props
 */
export function Markdown({ text, growing = false, limit = SHOWN_CHARACTERS }) {
  const before = useRef(/** @type {any} */ (null));
  const shown = text.length > limit ? text.slice(0, limit) : text;
  const read = useMemo(() => (growing ? grownBlocks(before.current, shown) : { all: blocksOf(shown) }), [shown, growing]);
  before.current = growing ? read : null;
  return html`<div class=${growing ? "md growing" : "md"}>
    ${read.all.map((/** @type {string} */ raw, /** @type {number} */ at) => html`<${Block} key=${at} text=${raw} />`)}
    ${growing && !read.all.length && html`<div class="md-block"><p></p></div>`}
    ${shown !== text && html`<${Rest} text=${text} />`}
  </div>`;
}

/** @param {{text: string}} props */
function Rest({ text }) {
  const [isOpen, setOpen] = useState(false);
  return html`<p><button type="button" class="plain" onClick=${() => setOpen(true)}>show all (${bytes(text.length)})</button></p>
    <${WholeText} text=${text} open=${isOpen} onClose=${() => setOpen(false)} />`;
}
