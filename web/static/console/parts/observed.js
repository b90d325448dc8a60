// The panel beside the conversation: the graph with its active nodes, the steps of the run, and the state of the thread.

import { html, useState } from "../core/dom.js";
import { href } from "../core/router.js";
import { Graph } from "./graph.js";
import { Empty, Json, Tabs } from "./index.js";
import { Steps } from "./steps.js";

/** @param {{name: string, assistantId: string, threadId: string|null, view: import("./run_view.js").RunView}} props */
export function Observed({ name, assistantId, threadId, view }) {
  const [tab, setTab] = useState("steps");
  return html`<section class="play-side" aria-label="Graph">
    <${LitGraph} name=${name} assistantId=${assistantId} view=${view} />
    <${Tabs} label="Details of the run" current=${tab} onChange=${setTab} tabs=${[{ id: "steps", label: "Steps" }, { id: "state", label: "State" }]}>
      ${tab === "steps" ? html`<${StepsOf} name=${name} threadId=${threadId} view=${view} />` : html`<${StateOf} view=${view} />`}
    <//>
  </section>`;
}

/** @param {{name: string, assistantId: string, view: import("./run_view.js").RunView}} props */
function LitGraph({ name, assistantId, view }) {
  const { active, done, failed } = view.lights.value;
  const asking = new Set([...view.lights.value.asking, ...view.questions.value.flatMap((each) => each.task ?? [])]);
  return html`<${Graph} deployment=${name} assistantId=${assistantId} active=${active} asking=${asking} done=${done} failed=${failed} />
    <p class="unseen" role="status">${active.size ? `Working: ${[...active].join(", ")}` : ""}</p>`;
}

/** @param {{name: string, threadId: string|null, view: import("./run_view.js").RunView}} props */
function StepsOf({ name, threadId, view }) {
  const items = view.items.value;
  const link = threadId && html`<a href=${href(["d", name, "threads", threadId])}>All steps of the thread</a>`;
  const runLink = threadId && view.runId.value && html`<a href=${href(["d", name, "runs", threadId, view.runId.value])}>This run</a>`;
  if (!items.length) return html`<${Empty} title=${hasState(view) ? "No steps are stored" : "No steps yet"} text="Steps of the nodes appear here while a run is in progress, and for some minutes after its end." action=${link} />`;
  return html`
    ${view.attempt.value > 1 && html`<p class="hint">Attempt ${view.attempt.value}: an earlier attempt was lost. This one continues from its last checkpoint.</p>`}
    ${view.dropped.value > 0 && html`<p class="hint">${view.dropped.value} earlier steps are not shown.</p>`}
    <${Steps} items=${items} phase=${view.phase} />
    <p class="play-links">${runLink} ${link}</p>`;
}

/** Return whether the thread has values. @param {import("./run_view.js").RunView} view */
const hasState = (view) => Object.keys(view.values.value ?? {}).length > 0;

/** @param {{view: import("./run_view.js").RunView}} props */
function StateOf({ view }) {
  const values = view.values.value;
  if (!hasState(view)) return html`<${Empty} title="No state yet" text="The values of the thread appear here when a run has started." />`;
  return html`<${Json} value=${values} collapsed=${2} label="State" />`;
}
