// The choice of the playground's thread: a new one, or one of the graph's newest.

import { html, useEffect } from "../core/dom.js";
import { deployment as at } from "../core/api.js";
import { THREAD_TITLE, ago, text, threadTitle } from "../core/format.js";
import { useDocumentTitle } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { setQuery } from "../core/router.js";
import { Button, Select } from "./index.js";

const LISTED = 30;
const SELECTED = ["thread_id", "status", "updated_at"];

/** @param {{name: string, graphId: string, threadId: string|null, phase: any}} props */
export function ThreadPicker({ name, graphId, threadId, phase }) {
  const { data: threads, reload } = useResource((signal) => at(name).call("POST", "/threads/search", {
    body: { metadata: { graph_id: graphId }, limit: LISTED, select: SELECTED, extract: THREAD_TITLE }, signal,
  }), [name, graphId]);
  const isIdle = phase.value === "idle";
  useEffect(() => {
    if (isIdle) reload();
  }, [isIdle, threadId]);
  const options = [{ value: "", label: "New thread" }, ...(threads ?? []).map(optionOf)];
  const current = threads?.find((/** @type {any} */ thread) => thread.thread_id === threadId);
  useDocumentTitle(current && `${threadTitle(current)} · Playground`);
  if (threadId && !options.some((option) => option.value === threadId)) options.splice(1, 0, { value: threadId, label: threadTitle({ thread_id: threadId }) });
  const choose = (/** @type {string} */ id) => setQuery({ thread: id || undefined }, { push: true });
  return html`<${Select} label="Thread" value=${threadId ?? ""} options=${options} onChange=${choose} />
    ${threadId && html`<${Button} onClick=${() => choose("")}>New thread<//>`}`;
}

/** @param {any} thread */
function optionOf(thread) {
  return { value: thread.thread_id, label: `${text(threadTitle(thread), 40)} · ${thread.status} · ${ago(thread.updated_at)}` };
}
