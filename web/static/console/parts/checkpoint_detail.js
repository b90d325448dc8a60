// One checkpoint of a thread: what its step changed, the state it holds, and what can be done from there.

import { canRunAt } from "../core/deployments.js";
import { html } from "../core/dom.js";
import { duration, plain } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { makerOf, parentOf, secondsOf } from "./checkpoints.js";
import { Diff } from "./diff.js";
import { StateTree } from "./state_tree.js";
import { Ago, Button, ErrorBox, Id, Json, Loading, Tabs } from "./index.js";

/** @typedef {import("./checkpoints.js").State} State */

const TABS = [{ id: "difference", label: "Difference" }, { id: "state", label: "State" }, { id: "next", label: "Next" }, { id: "metadata", label: "Metadata" }];

/**
 * @param {{name: string, thread: string, checkpoint: string, row?: State, runs: Map<string, import("./checkpoints.js").RunTimes>, states: {load: (id: string) => Promise<State>}, tab: string, isBusy: boolean,
 *   onTab: (tab: string) => void, onEdit: (state: State) => void, onReplay: (state: State) => void}} props
 */
export function CheckpointDetail({ name, thread, checkpoint, row, runs, states, tab, isBusy, onTab, onEdit, onReplay }) {
  const { data, error } = useResource(async () => {
    const state = await states.load(checkpoint);
    const parent = parentOf(state);
    return { state, before: parent ? await states.load(parent) : null };
  }, [thread, checkpoint]);
  if (error && !data) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  const state = { ...data.state, ...row, values: data.state.values };
  if (!state.metadata) return html`<p class="quiet">There is no such checkpoint. It may have been pruned.</p>`;
  const { names, isNode } = makerOf(state, data.before ?? undefined);
  const seconds = secondsOf(state, data.before ?? undefined, runs);
  return html`
    <section class="checkpoint-detail" aria-label="Checkpoint">
      <header>
        <h2>${plain(names.join(", ").slice(0, 120))} <span class="quiet">step ${state.metadata.step ?? "–"}${isNode ? "" : ` · ${state.metadata.source ?? ""}`}</span></h2>
        <p class="facts">
          <${Id} value=${checkpoint} /> <${Ago} at=${state.created_at} />
          ${isNode && seconds !== null && html`<span>worked ${duration(seconds)}</span>`}
          ${state.metadata.run_id && html`<a href=${href(["d", name, "runs", thread, String(state.metadata.run_id)])}>its run</a>`}
        </p>
        ${canRunAt(name) && html`
          <div class="actions">
            <${Button} onClick=${() => onEdit(state)} disabled=${isBusy} title=${isBusy ? "A run is going on" : undefined}>Edit and fork…<//>
            <${Button} onClick=${() => onReplay(state)} disabled=${!state.next.length} title=${state.next.length ? undefined : "Nothing comes after this checkpoint"}>Replay from here<//>
          </div>`}
      </header>
      <${Tabs} label="Parts of the checkpoint" tabs=${TABS} current=${tab} onChange=${onTab}>
        ${tab === "difference" && html`<${Diff} before=${data.before?.values ?? {}} after=${state.values} />`}
        ${tab === "state" && html`<${StateTree} values=${state.values} />`}
        ${tab === "next" && html`<${Next} state=${state} />`}
        ${tab === "metadata" && html`<${Json} value=${state.metadata} />`}
      <//>
    </section>`;
}

/** The tasks after a checkpoint, and their results. @param {{state: State}} props */
function Next({ state }) {
  if (!state.next.length && !state.tasks.length) return html`<p class="quiet">Nothing: the graph has ended here.</p>`;
  return html`
    <ul class="tasks">
      ${state.tasks.slice(0, 100).map((task, at) => html`
        <li key=${task.id ?? at}>
          <strong>${plain(task.name.slice(0, 120))}</strong>
          ${task.error && html`<pre class="bad">${plain(String(task.error).slice(0, 5_000))}</pre>`}
          ${task.interrupts?.map((interrupt) => html`<div class="waits" key=${interrupt.id}>${task.result == null ? "asks" : "asked"} <${Json} value=${interrupt.value} /></div>`)}
          ${task.result != null && html`<${Json} value=${task.result} collapsed=${0} />`}
          ${task.result == null && !task.error && !task.interrupts?.length && html` <span class="quiet">no result kept</span>`}
        </li>`)}
      ${!state.tasks.length && state.next.map((node) => html`<li key=${node}>${plain(node)}</li>`)}
    </ul>`;
}
