// The timelines of a run and of a thread. The service computes the bands; a chosen band shows its input and output.

import { deployment } from "../core/api.js";
import { html } from "../core/dom.js";
import { href } from "../core/router.js";
import { useResource } from "../core/resource.js";
import { ErrorBox, Json, Loading } from "./index.js";
import { isLive } from "./runs.js";
import { Timeline } from "./timeline.js";

/** @typedef {import("./time_axis.js").Band} Band */

const LOOK_AGAIN_MS = 1_500;
const CALLS = new Set(["model", "tool"]);

/** @param {{name: string, run: Record<string, any>}} props */
export function RunTimeline({ name, run }) {
  const { run_id: id, thread_id: thread } = run;
  return html`<${Line} name=${name} thread=${thread} path=${`/threads/${thread}/runs/${id}/timeline`} version=${run.status} isLive=${isLive(run) || Boolean(run.waits_for)} label="Timeline of the run" />`;
}

/** @param {{name: string, thread: Record<string, any>}} props */
export function ThreadTimeline({ name, thread }) {
  const { thread_id: id, status, updated_at: updated } = thread;
  return html`<${Line} name=${name} thread=${id} path=${`/threads/${id}/timeline`} version=${`${status} ${updated}`} isLive=${status === "busy"} label="Timeline of the thread" />`;
}

/** @param {{name: string, thread: string, path: string, version: string, isLive: boolean, label: string}} props */
function Line({ name, thread, path, version, isLive, label }) {
  const { data, error } = useResource(async (signal) => ({ line: await deployment(name).call("GET", path, { signal }), now: Date.now() }), [name, path, version], { every: isLive ? LOOK_AGAIN_MS : undefined });
  if (!data) return error ? html`<${ErrorBox} error=${error} />` : html`<${Loading} />`;
  if (!data.line.bands.length) return html`<p class="quiet">No run has been created on this thread.</p>`;
  const detail = (/** @type {Band} */ band) => html`<${Detail} key=${band.id} name=${name} thread=${thread} band=${band} bands=${data.line.bands} />`;
  return html`<${Timeline} bands=${data.line.bands} now=${data.now} label=${label} detail=${detail} />`;
}

/** @param {{name: string, thread: string, band: Band, bands: Band[]}} props */
function Detail({ name, thread, band, bands }) {
  if (band.kind === "person") return html`<${Person} name=${name} thread=${thread} band=${band} />`;
  if (CALLS.has(band.kind)) {
    const node = nodeAround(band, bands);
    return html`<p class="quiet">Inputs and outputs of single calls are not stored.${node ? html` These are those of the node <strong>${node.name}</strong>.` : ""}</p>
      ${node && html`<${NodeValues} name=${name} thread=${thread} band=${node} />`}`;
  }
  if (band.kind === "node") return html`<${NodeValues} name=${name} thread=${thread} band=${band} />`;
  if (band.kind === "claim" || band.kind === "host_start") return html`<p class="quiet">${band.kind === "claim" ? "A runner took the run from the queue." : "The runner waited for a graph host of the revision, and sent the run to it."}</p>`;
  return html`<${RunValues} name=${name} thread=${thread} id=${band.run_id ?? ""} />`;
}

/** @param {Band} band @param {Band[]} bands @returns {Band | undefined} */
function nodeAround(band, bands) {
  const outer = bands.find((each) => each.id === band.parent);
  return !outer || outer.kind === "node" ? outer : CALLS.has(outer.kind) ? nodeAround(outer, bands) : undefined;
}

/** The state before a node, and what the node wrote. @param {{name: string, thread: string, band: Band}} props */
function NodeValues({ name, thread, band }) {
  const { checkpoint_id: id, checkpoint_ns: ns } = band;
  const task = band.id.split("/").at(-1);
  const { data, error } = useResource(async (signal) => (id ? deployment(name).call("POST", `/threads/${thread}/state/checkpoint`, { body: { checkpoint: { checkpoint_id: id, checkpoint_ns: ns ?? "" } }, signal }) : null), [name, thread, id, ns]);
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (data === undefined) return html`<${Loading} />`;
  if (!data) return html`<p class="quiet">The node has not ended: it wrote no checkpoint.</p>`;
  const own = data.tasks.find((/** @type {any} */ each) => each.id === task) ?? data.tasks.find((/** @type {any} */ each) => each.name === band.name);
  return html`
    <${Both} input=${data.values} inputTitle="State before the node" output=${own?.error ?? own?.result} outputTitle=${own?.error ? "Error" : "What the node wrote"} questions=${own?.interrupts} />
    ${!ns && html`<p><a href=${href(["d", name, "threads", thread], { checkpoint: id })}>Open the checkpoint</a></p>`}`;
}

/** @param {{name: string, thread: string, id: string}} props */
function RunValues({ name, thread, id }) {
  const api = deployment(name);
  const { data, error } = useResource(async (signal) => {
    const [run, states] = await Promise.all([
      api.call("GET", `/threads/${thread}/runs/${id}`, { signal }),
      api.call("POST", `/threads/${thread}/history`, { body: { limit: 1, metadata: { run_id: id } }, signal }),
    ]);
    return { run, state: states[0] };
  }, [name, thread, id]);
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  const { command, input } = data.run.kwargs ?? {};
  return html`<${Both} input=${command ?? input} inputTitle=${command ? "Command" : "Input of the run"} output=${data.state?.values} outputTitle="State after the run" />
    <p><a href=${href(["d", name, "runs", thread, id])}>Open the run</a></p>`;
}

/** The question of the run before a person's band, and the answer of the run after it. @param {{name: string, thread: string, band: Band}} props */
function Person({ name, thread, band }) {
  const api = deployment(name);
  const [asking, , answering] = band.id.split("/");
  const { data, error } = useResource(async (signal) => {
    const [states, answer] = await Promise.all([
      api.call("POST", `/threads/${thread}/history`, { body: { limit: 1, metadata: { run_id: asking } }, signal }),
      answering ? api.call("GET", `/threads/${thread}/runs/${answering}`, { signal }) : null,
    ]);
    return { questions: (states[0]?.tasks ?? []).flatMap((/** @type {any} */ task) => task.interrupts ?? []), answer: answer?.kwargs };
  }, [name, thread, band.id]);
  if (error) return html`<${ErrorBox} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  const { questions, answer } = data;
  return html`<${Both} input=${questions.length === 1 ? questions[0].value : questions.map((/** @type {any} */ each) => each.value)} inputTitle=${questions.length ? "Question" : "Breakpoint"}
    output=${answer?.command ? (answer.command.resume ?? answer.command) : (answer?.input ?? undefined)} outputTitle="Answer" />
    ${answering && html`<p><a href=${href(["d", name, "runs", thread, answering])}>Open the run that answers</a></p>`}`;
}

/** @param {{input: any, inputTitle: string, output: any, outputTitle: string, questions?: any[]}} props */
const Both = ({ input, inputTitle, output, outputTitle, questions = [] }) => html`
  <div class="in-and-out">
    <section><h4>${inputTitle}</h4>${input == null || (Array.isArray(input) && !input.length) ? html`<p class="quiet">None.</p>` : html`<${Json} value=${input} collapsed=${4} label=${inputTitle} />`}</section>
    <section><h4>${outputTitle}</h4>${output == null ? html`<p class="quiet">${questions.length ? "Nothing: it asked a question." : "Nothing."}</p>` : html`<${Json} value=${output} collapsed=${4} label=${outputTitle} />`}
      ${questions.map((each) => html`<${Json} key=${each.id} value=${each.value} label="Question" />`)}</section>
  </div>`;
