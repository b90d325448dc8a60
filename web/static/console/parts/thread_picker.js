// Which thread the playground works on: a new one, or one of the graph's newest.

import { html, useEffect } from "../core/dom.js";
import { deployment as at } from "../core/api.js";
import { ago, short, text as oneLine } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { setQuery } from "../core/router.js";
import { Button, Select } from "./index.js";

const LISTED = 30;
const SELECTED = ["thread_id", "status", "updated_at"];

/** @param {{name: string, graphId: string, threadId: string|null, phase: any}} props */
export function ThreadPicker({ name, graphId, threadId, phase }) {
  const { data: threads, reload } = useResource((signal) => at(name).call("POST", "/threads/search", {
    body: { metadata: { graph_id: graphId }, limit: LISTED, select: SELECTED, extract: { said: "values.messages[0].content" } }, signal,
  }), [name, graphId]);
  const isIdle = phase.value === "idle";
  useEffect(() => {
    if (isIdle) reload();
  }, [isIdle, threadId]);
  const options = [{ value: "", label: "New thread" }, ...(threads ?? []).map(optionOf)];
  if (threadId && !options.some((option) => option.value === threadId)) options.splice(1, 0, { value: threadId, label: short(threadId) });
  const choose = (/** @type {string} */ id) => setQuery({ thread: id || undefined }, { push: true });
  return html`<${Select} label="Thread" value=${threadId ?? ""} options=${options} onChange=${choose} />
    ${threadId && html`<${Button} label="New thread" onClick=${() => choose("")}>New<//>`}`;
}

/** @param {any} thread */
function optionOf(thread) {
  const said = thread.extracted?.said;
  const about = typeof said === "string" && said ? oneLine(said, 40) : short(thread.thread_id);
  return { value: thread.thread_id, label: `${about} · ${thread.status} · ${ago(thread.updated_at)}` };
}
