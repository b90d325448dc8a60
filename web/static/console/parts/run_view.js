// The view of a thread and of its run: signals that the events of the run's stream change. Events may arrive faster than a screen is drawn, so
// they are collected and applied once per frame, and only the components of changed signals render.

import { batch, signal } from "../core/dom.js";
import { areMessages, grown, looksSame, normal } from "./messages.js";

const KEPT_STEPS = 500; // newest items of a list; a graph may loop for hours
const HIDDEN_MS = 250; // hidden tabs get no animation frames
const LEAST_SECONDS = 0.05; // a shorter time is due to the connection, not to the node

/**
 * @typedef {import("./messages.js").Message} Message
 * @typedef {import("../../vendor/signals.js").Signal<any>} AnySignal
 * @typedef {{key: string, message: AnySignal, task: string|null}} Entry a message on the page
 * @typedef {object} Step one task of a node
 * @property {"step"} kind
 * @property {string} key
 * @property {string} name
 * @property {string} path the node's id in the drawing: `child:inner`
 * @property {AnySignal} status `working`, `done`, `failed` or `asks`
 * @property {AnySignal} result
 * @property {AnySignal} error
 * @property {any} input
 * @property {number} began
 * @property {AnySignal} seconds null while it works, or if its start was not observed
 * @property {AnySignal} items steps of its subgraph, and what they wrote to the stream
 * @property {AnySignal} said messages of its models: Entry[]
 * @typedef {{kind: "told", key: string, data: any}} Told what a node wrote to the stream
 * @typedef {{id: string, value: any, response_schema?: any, task?: string}} Question
 * @typedef {{id: string, event: string, data: any, at?: number}} RunEvent `at`: time of arrival
 * @typedef {ReturnType<typeof runView>} RunView
 */

/** An empty view of a thread. */
export function runView() {
  const view = {
    values: signal(/** @type {any} */ (null)),
    entries: signal(/** @type {Entry[]} */ ([])), // messages of the state, then partial messages
    items: signal(/** @type {(Step|Told)[]} */ ([])),
    dropped: signal(0), // number of items beyond KEPT_STEPS
    questions: signal(/** @type {Question[]} */ ([])),
    next: signal(/** @type {string[]} */ ([])), // the next nodes of the thread
    error: signal(/** @type {{error?: string, message?: string}|null} */ (null)),
    tools: signal(/** @type {Record<string, {status: string, output: string}>} */ ({})), // by the id of the call, while the tools run
    lights: signal(noLights()),
    phase: signal(/** @type {"idle"|"waiting"|"running"|"stopping"} */ ("idle")),
    runId: signal(/** @type {string|null} */ (null)),
    attempt: signal(1),
    isMeasured: true, // false while stored events are replayed
    lastEventId: /** @type {string|null} */ (null),
    schemas: /** @type {Record<string, any>} */ ({}), // schemas of answers, by question
    steps: /** @type {Map<string, Step>} */ (new Map()),
    known: /** @type {Map<string, Entry>} */ (new Map()), // entries by message id
    hasTasks: false,
    told: 0,
    now: 0, // time of arrival of the event that is being applied
  };
  return view;
}

/** Reset the view for a new run. The steps are kept if the run continues the last one. @param {RunView} view */
export function beginRun(view, { goesOn = false } = {}) {
  batch(() => {
    view.questions.value = [];
    view.next.value = [];
    view.error.value = null;
    view.tools.value = {};
    view.runId.value = null;
    view.attempt.value = 1;
    if (!goesOn) forgetSteps(view);
  });
  view.lastEventId = null;
  view.hasTasks = false;
  view.isMeasured = true;
}

/** @param {RunView} view */
function forgetSteps(view) {
  view.items.value = [];
  view.dropped.value = 0;
  view.lights.value = noLights();
  view.steps.clear();
}

/** Show a message before the service has stored it. @param {RunView} view @param {any} message */
export function addMessage(view, message) {
  const entry = entryOf(view, normal(message), null);
  if (!view.entries.value.includes(entry)) view.entries.value = [...view.entries.value, entry];
}

/** Apply a state in the form of `GET /state`. @param {RunView} view @param {any} state */
export function showState(view, state) {
  batch(() => {
    showValues(view, state.values ?? {}, { isLast: true });
    const questions = (state.tasks ?? []).flatMap((/** @type {any} */ task) =>
      (task.interrupts ?? []).map((/** @type {any} */ each) => ({ ...each, task: task.name })));
    view.questions.value = questions.map((/** @type {Question} */ each) => ({ ...each, response_schema: each.response_schema ?? view.schemas[each.id] }));
    view.next.value = state.next ?? [];
  });
}

/** A collector of events that applies them once per frame. @param {RunView} view */
export function gatherer(view) {
  /** @type {RunEvent[]} */
  let waiting = [];
  let isAsked = false;
  const flush = () => {
    const events = waiting;
    waiting = [];
    isAsked = false;
    applyAll(view, events);
  };
  return {
    /** @param {RunEvent} event */
    take(event) {
      waiting.push({ ...event, at: performance.now() });
      if (isAsked) return;
      isAsked = true;
      if (document.hidden) setTimeout(flush, HIDDEN_MS);
      else requestAnimationFrame(flush);
    },
    flush,
  };
}

/** @param {RunView} view @param {RunEvent[]} events */
export function applyAll(view, events) {
  if (!events.length) return;
  const change = { entries: null, tools: null, isLit: false };
  batch(() => {
    let values = null; // only the last state of a frame is rendered
    for (const event of events) {
      if (event.id) view.lastEventId = event.id;
      const [mode, ...spaces] = event.event.split("|");
      if (mode === "values" && !spaces.length) values = event.data;
      else {
        view.now = event.at ?? performance.now();
        apply(view, mode, spaces, event.data, change);
      }
    }
    if (change.entries) view.entries.value = change.entries;
    if (change.tools) view.tools.value = change.tools;
    if (values) showValues(view, values, { isLast: false });
    if (change.isLit) view.lights.value = lightsOf(view.steps);
  });
}

/** @param {RunView} view @param {string} mode @param {string[]} spaces @param {any} data @param {any} change */
function apply(view, mode, spaces, data, change) {
  if (mode === "metadata") begun(view, data);
  else if (mode === "messages") said(view, spaces, data, change);
  else if (mode === "tasks") worked(view, spaces, data, change);
  else if (mode === "updates") updated(view, spaces, data, change);
  else if (mode === "custom") push(view, spaces, { kind: "told", key: `told-${++view.told}`, data });
  else if (mode === "tools") usedTool(view, data, change);
  else if (mode === "error") view.error.value = data;
}

/** @param {RunView} view @param {any} data */
function begun(view, data) {
  if (data?.run_id) view.runId.value = data.run_id;
  if (data?.attempt > view.attempt.value) beginAgain(view, data.attempt);
  if (view.phase.value === "waiting") view.phase.value = "running";
}

/** Drop the partial messages of a lost attempt. @param {RunView} view @param {number} attempt */
function beginAgain(view, attempt) {
  view.attempt.value = attempt;
  endSteps(view, "stopped");
  const ids = new Set((view.values.value?.messages ?? []).map((/** @type {any} */ each) => each.id));
  view.entries.value = view.entries.value.filter((entry) => ids.has(entry.key) || entry.message.peek().type === "human");
}

// Messages

/** @param {RunView} view @param {Message} message @param {string|null} task @returns {Entry} */
function entryOf(view, message, task) {
  const known = message.id ? view.known.get(message.id) : undefined;
  if (known) return known;
  const entry = { key: message.id ?? `m-${++view.told}`, message: signal(message), task };
  if (message.id) view.known.set(message.id, entry);
  return entry;
}

/** @param {RunView} view @param {string[]} spaces @param {any} data @param {any} change */
function said(view, spaces, data, change) {
  const [part, metadata] = data;
  if (!part?.id) return; // the state will contain the message
  const task = lastOf(metadata?.langgraph_checkpoint_ns ?? metadata?.checkpoint_ns);
  const entry = view.known.get(part.id);
  if (entry) {
    entry.message.value = grown(entry.message.peek(), part);
    return;
  }
  const fresh = entryOf(view, grown(null, part), task);
  const step = task ? view.steps.get(task) : undefined;
  if (step) step.said.value = [...step.said.value, fresh];
  if (!spaces.length) change.entries = [...(change.entries ?? view.entries.value), fresh];
}

/** Show the messages of the state, then the partial messages of working nodes. @param {RunView} view @param {any} values @param {{isLast: boolean}} when */
function showValues(view, values, { isLast }) {
  const { __interrupt__: interrupts, ...state } = values;
  for (const each of interrupts ?? []) if (each.response_schema) view.schemas[each.id] = each.response_schema;
  view.values.value = state;
  if (!areMessages(state.messages)) return;
  const before = view.entries.value;
  const entries = state.messages.map((/** @type {any} */ given, /** @type {number} */ at) => {
    const message = normal(given);
    const entry = message.id ? entryOf(view, message, null) : (before[at] ?? entryOf(view, message, null));
    if (!looksSame(entry.message.peek(), message)) entry.message.value = message;
    return entry;
  });
  const inState = new Set(entries);
  const growing = isLast ? [] : before.filter((entry) => !inState.has(entry) && isComing(view, entry));
  const shown = [...entries, ...growing];
  if (shown.length !== before.length || shown.some((entry, at) => entry !== before[at])) view.entries.value = shown;
}

/** @param {RunView} view @param {Entry} entry */
function isComing(view, entry) {
  const step = entry.task ? view.steps.get(entry.task) : undefined;
  return step ? step.status.peek() === "working" : Boolean(entry.message.peek().growing);
}

// Steps

/** @param {RunView} view @param {string[]} spaces @param {any} data @param {any} change */
function worked(view, spaces, data, change) {
  view.hasTasks = true;
  change.isLit = true;
  const step = view.steps.get(data.id);
  if (!("triggers" in data) && step) return ended(view, step, data);
  if (step) {
    step.status.value = "working"; // the step asked a question, got its answer, and works again
    step.error.value = null;
    step.began = view.now;
  } else push(view, spaces, stepOf(view, spaces, data.id, data.name, data.input, "working"));
}

/** @param {RunView} view @param {Step} step @param {any} data */
function ended(view, step, data) {
  const isAsking = (data.interrupts ?? []).length > 0;
  step.status.value = data.error ? "failed" : isAsking ? "asks" : "done";
  step.result.value = isAsking ? data.interrupts.map((/** @type {any} */ each) => each.value) : data.result;
  step.error.value = data.error ?? null;
  const seconds = (view.now - step.began) / 1000;
  if (view.isMeasured && seconds >= LEAST_SECONDS) step.seconds.value = seconds;
}

/** Add steps from `updates` events: runs of other clients may lack `tasks` events, which have the start of nodes. @param {RunView} view @param {string[]} spaces @param {any} data @param {any} change */
function updated(view, spaces, data, change) {
  if (view.hasTasks || !data) return;
  change.isLit = true;
  for (const [name, result] of Object.entries(data)) {
    if (name === "__interrupt__") continue;
    const step = stepOf(view, spaces, `update-${++view.told}`, name, undefined, "done");
    step.result.value = result;
    push(view, spaces, step);
  }
}

/** @param {RunView} view @param {string[]} spaces @param {string} id @param {string} name @param {any} input @param {string} status @returns {Step} */
function stepOf(view, spaces, id, name, input, status) {
  const path = [...spaces.map((space) => space.split(":")[0]), name].join(":");
  /** @type {Step} */
  const step = {
    kind: "step", key: id, name, path, input, began: view.now,
    status: signal(status), result: signal(undefined), error: signal(null), seconds: signal(null), items: signal([]), said: signal([]),
  };
  view.steps.set(id, step);
  return step;
}

/** Add an item to the list of its subgraph's task, or to the run's. @param {RunView} view @param {string[]} spaces @param {Step|Told} item */
function push(view, spaces, item) {
  const parent = spaces.length ? view.steps.get(lastOf(spaces.at(-1)) ?? "") : undefined;
  const list = parent?.items ?? view.items;
  const kept = [...list.value, item];
  if (kept.length > KEPT_STEPS) {
    const [first] = kept.splice(0, 1);
    drop(view, first);
    if (!parent) view.dropped.value += 1;
  }
  list.value = kept;
}

/** @param {RunView} view @param {Step|Told} item */
function drop(view, item) {
  if (item.kind !== "step") return;
  view.steps.delete(item.key);
  for (const inner of item.items.peek()) drop(view, inner);
}

/** The id of the innermost task of a namespace. @param {string|undefined} space */
function lastOf(space) {
  return space?.split("|").at(-1)?.split(":")[1] ?? null;
}

/** @param {Map<string, Step>} steps */
function lightsOf(steps) {
  const lights = noLights();
  for (const step of steps.values()) LIT[step.status.peek()]?.(lights).add(step.path);
  return lights;
}

/** The highlighted nodes of the drawing, by kind. @returns {Record<"active"|"asking"|"done"|"failed", Set<string>>} */
function noLights() {
  return { active: new Set(), asking: new Set(), done: new Set(), failed: new Set() };
}

/** @type {Record<string, (lights: ReturnType<typeof noLights>) => Set<string>>} */
const LIT = { working: (lights) => lights.active, asks: (lights) => lights.asking, done: (lights) => lights.done, failed: (lights) => lights.failed };

/** Mark all working steps as ended. @param {RunView} view @param {"done"|"failed"|"stopped"} how */
export function endSteps(view, how) {
  batch(() => {
    for (const step of view.steps.values()) if (step.status.peek() === "working") step.status.value = how === "failed" ? "failed" : "stopped";
    for (const entry of view.entries.value) if (entry.message.peek().growing) entry.message.value = { ...entry.message.peek(), growing: false };
    view.lights.value = lightsOf(view.steps);
  });
}

// Tools

/** @param {RunView} view @param {any} data @param {any} change */
function usedTool(view, data, change) {
  const tools = { ...(change.tools ?? view.tools.value) };
  const tool = tools[data.toolCallId] ?? { status: "working", output: "" };
  if (data.event === "on_tool_event") tools[data.toolCallId] = { ...tool, output: tool.output + asText(data.data) };
  else if (data.event === "on_tool_error") tools[data.toolCallId] = { ...tool, status: "failed", output: String(data.error ?? "") };
  else if (data.event === "on_tool_end") tools[data.toolCallId] = { ...tool, status: "done" };
  else tools[data.toolCallId] = tool;
  change.tools = tools;
}

/** @param {any} value */
function asText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
