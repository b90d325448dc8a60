// The page that a link for one answer opens. It needs no account: the token in the address's fragment shows the question
// and takes one answer. The page sends the token in the bodies of two requests, and no other request.

import { html, render, useEffect, useState } from "./core/dom.js";
import { plain } from "./core/format.js";
import "./core/theme.js";
import { QuestionForm } from "./parts/question.js";
import { Ago, ErrorBox } from "./parts/small.js";

/** @typedef {{value: any, version: string, kind: "interrupt" | "breakpoint", response_schema?: any, thread_title: string, deployment_name: string, asked_at: string, expires_at: string, label: string | null}} LinkedQuestion */

const ROOT = new URL("../../../../", import.meta.url);
const GONE = 410, UNKNOWN = 404, CHANGED = 409;

class LinkError extends Error {
  /** @param {number} status 0 if the service was not reached @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/**
 * Call one of the two routes for links. Raises LinkError.
 * @param {"question" | "answer"} route @param {Record<string, any>} body
 * @returns {Promise<any>}
 */
async function call(route, body) {
  let response;
  try {
    response = await fetch(new URL(`v2/inbox/link/${route}`, ROOT), {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
      cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch {
    throw new LinkError(0, "Cannot reach the service. Check the connection and try again.");
  }
  const content = await response.json().catch(() => ({}));
  if (response.ok) return content;
  throw new LinkError(response.status, errorText(response, content));
}

/** @param {Response} response @param {any} content */
function errorText(response, { detail }) {
  if (Array.isArray(detail)) return detail.map(({ msg }) => msg).join("; ");
  if (response.status === 429) return "Too many attempts from this address. Try again in a few minutes.";
  return typeof detail === "string" ? detail : `The service answered ${response.status}.`;
}

/** @param {{token: string}} props */
function AnswerPage({ token }) {
  const [question, setQuestion] = useState(/** @type {LinkedQuestion | null} */ (null));
  const [error, setError] = useState(/** @type {LinkError | null} */ (null));
  const [isSending, setSending] = useState(false);
  const [isSent, setSent] = useState(false);
  const load = () => {
    setError(null);
    return call("question", { token }).then(setQuestion, setError);
  };
  useEffect(() => void load(), []);
  const send = async (/** @type {any} */ answer) => {
    setSending(true);
    setError(null);
    try {
      await call("answer", { token, answer, version: question?.version });
      setSent(true);
    } catch (error) {
      const failure = /** @type {LinkError} */ (error);
      if (failure.status === CHANGED) await load();
      setError((current) => (failure.status === CHANGED && current) || failure);
    }
    setSending(false);
  };
  if (isSent) return html`<${Message} title="Thank you" text="Your answer was sent. You can close this page." />`;
  if (error && (error.status === GONE || error.status === UNKNOWN)) return html`<${Message} title="This link does not work any more" text=${error.message} />`;
  if (!question) return html`<main class="answer-page">${error ? html`<${ErrorBox} error=${error} retry=${load} />` : html`<p class="loading" role="status">Loading the question…</p>`}</main>`;
  return html`<main class="answer-page">
    <h1>${plain(question.thread_title || "A question for you")}</h1>
    <p class="quiet">${plain(question.deployment_name)} asked <${Ago} at=${question.asked_at} />${question.label ? html` · for ${plain(question.label)}` : ""} · this link expires <${Ago} at=${question.expires_at} /></p>
    <${ErrorBox} error=${error} />
    <${QuestionForm} question=${{ ...question, id: "question" }} disabled=${isSending} onAnswer=${send} />
    <p class="hint">You can answer once.</p>
  </main>`;
}

/** @param {{title: string, text: string}} props */
const Message = ({ title, text }) => html`<main class="answer-page"><div class="answer-done" role="status"><h1>${title}</h1><p>${text}</p></div></main>`;

function start() {
  const token = location.hash.slice(1);
  const root = /** @type {HTMLElement} */ (document.getElementById("root"));
  const page = token ? html`<${AnswerPage} key=${token} token=${token} />` : html`<${Message} title="This link is incomplete" text="Copy the whole address, including the part after #." />`;
  render(page, root);
}

addEventListener("hashchange", start);
start();
