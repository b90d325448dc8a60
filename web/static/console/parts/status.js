// The status of a run or a thread. If a person must act, it says so and links to the question in the inbox.

import { html } from "../core/dom.js";
import { href } from "../core/router.js";
import { waitsInWords } from "./runs.js";
import { Pill } from "./small.js";

/** @param {{run: Record<string, any>}} props */
export function RunStatus({ run }) {
  const waits = waitsInWords(run);
  return waits ? html`<${WaitsPill} thread=${run.thread_id} words=${waits} status=${run.status} />` : html`<${Pill} status=${run.status} />`;
}

/** @param {{thread: Record<string, any>}} props */
export function ThreadStatus({ thread }) {
  const isAsking = thread.status === "interrupted" && Object.values(thread.interrupts ?? {}).some((each) => each.length > 0);
  if (isAsking) return html`<${WaitsPill} thread=${thread.thread_id} words="waits for an answer" status=${thread.status} />`;
  return html`<${Pill} status=${thread.status} title=${thread.status === "interrupted" ? "The last run stopped before the end of the graph" : undefined} />`;
}

/** @param {{thread: string, words: string, status: string}} props */
function WaitsPill({ thread, words, status }) {
  return html`<a class="pill warn" href=${href("/inbox", { thread })} title=${`Status ${status}. Open the question in the inbox`}>${words}</a>`;
}
