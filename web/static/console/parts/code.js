// Texts as they are: cut where they are long, whole on demand in a box that the browser scrolls.

import { html, useState } from "../core/dom.js";
import { bytes, plain } from "../core/format.js";
import { Dialog } from "./dialog.js";
import { Copy } from "./small.js";

const CUT = 4000;

/** @param {{text: string, language?: string, label?: string}} props */
export function Code({ text, language = "", label }) {
  return html`
    <div class="code">
      ${label && html`<span class="code-label">${label}</span>`}
      <${Copy} text=${text} />
      <pre tabindex="0" data-language=${language} aria-label=${label ?? "Code"} role="region"><code><${LongText} text=${text} /></code></pre>
    </div>`;
}

/** A text, of which so much is shown; the rest on demand. @param {{text: string, limit?: number}} props */
export function LongText({ text, limit = CUT }) {
  const [isWhole, setWhole] = useState(false);
  if (text.length <= limit) return plain(text);
  return html`${plain(text.slice(0, limit))}…${" "}<button type="button" class="plain more" onClick=${() => setWhole(true)}>show all (${bytes(text.length)})</button>
    <${WholeText} text=${text} open=${isWhole} onClose=${() => setWhole(false)} />`;
}

/** @param {{text: string, open: boolean, onClose: () => void, title?: string}} props */
export function WholeText({ text, open, onClose, title = "The whole text" }) {
  return html`<${Dialog} title=${title} open=${open} onClose=${onClose} wide=${true} actions=${html`<${Copy} text=${text} />`}>
    <textarea class="whole mono" readonly aria-label=${title} rows="24" value=${text} wrap="off"></textarea>
  <//>`;
}
