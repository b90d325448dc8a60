// Starts, follows, stops and rejoins the runs of one thread. A run is created first and then joined from its first event, so that a new run, a
// run found after a reload, and a run whose connection was lost are followed in the same way.

import { batch } from "../core/dom.js";
import { newId } from "./messages.js";
import { addMessage, beginRun, endSteps, gatherer, runView, showState } from "./run_view.js";

const MODES = ["values", "messages-tuple", "custom", "tasks", "tools"]; // `tasks` has all data of `updates`, and the start of nodes
const FROM_START = "-1";
const RETRY_MS = [500, 1000, 2000, 5000];
const KEPT_MS = 15 * 60 * 1000; // time that the service keeps the events of an ended run
const HISTORY = 20; // states per request
const LIVE = new Set(["pending", "running"]);

/**
 * @typedef {import("./run_view.js").RunView} RunView
 * @typedef {ReturnType<typeof runControl>} RunControl
 */

/**
 * @param {any} deployment the API of a deployment: `deployment(name)` of core/api.js
 * @param {{onThread: (id: string) => void, onError: (error: any) => void}} on
 */
export function runControl(deployment, on) {
  const view = runView();
  let threadId = /** @type {string|null} */ (null);
  let following = new AbortController();

  /** Stop following the run. The run itself continues. */
  function leave() {
    following.abort();
    following = new AbortController();
  }

  /** Show a thread, and join its live run. @param {string|null} id */
  async function open(id) {
    if (id !== null && id === threadId) return;
    leave();
    threadId = id;
    forget(view);
    if (id === null) return;
    const { signal } = following;
    try {
      const [[thread, state], runs] = await Promise.all([
        read(id, signal), deployment.call("GET", `${pathOf(id)}/runs`, { query: { limit: 10 }, signal }),
      ]);
      showState(view, state);
      view.error.value = thread.error ?? null;
      const run = runs.filter((/** @type {any} */ each) => LIVE.has(each.status)).at(-1) ?? runs[0];
      if (run) await rejoin(run, signal);
    } catch (error) {
      if (!signal.aborted) on.onError(error);
    }
  }

  async function reopen() {
    const id = threadId;
    threadId = null;
    await open(id);
  }

  /** @param {any} run @param {AbortSignal} signal */
  async function rejoin(run, signal) {
    const isLive = LIVE.has(run.status);
    const isKept = run.kwargs?.resumable && Date.now() - Date.parse(run.updated_at) < KEPT_MS;
    if (!isLive && !isKept) return;
    const back = saved(view);
    beginRun(view);
    if (!isLive) back();
    view.isMeasured = false;
    view.runId.value = run.run_id;
    if (isLive) view.phase.value = "waiting";
    await follow(run, signal);
  }

  /**
   * Create a run and follow it to its end. Returns whether it was created and followed.
   * @param {{assistantId: string, graphId: string, body: Record<string, any>, message?: any}} request
   */
  async function start({ assistantId, graphId, body, message }) {
    leave();
    const { signal } = following;
    const back = saved(view);
    beginRun(view, { goesOn: "command" in body || body.input === null });
    view.phase.value = "waiting";
    try {
      if (threadId === null) {
        const created = await deployment.call("POST", "/threads", { body: { metadata: { graph_id: graphId } }, signal });
        threadId = created.thread_id;
        on.onThread(created.thread_id);
      }
      if (message) addMessage(view, message);
      const run = await deployment.call("POST", `${pathOf(threadId)}/runs`, {
        body: { assistant_id: assistantId, stream_mode: MODES, stream_subgraphs: true, stream_resumable: true, ...body },
        signal,
      });
      view.runId.value = run.run_id;
      await follow(run, signal);
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      batch(() => {
        view.phase.value = "idle";
        back();
        if (message) view.entries.value = view.entries.value.filter((entry) => entry.key !== message.id);
      });
      on.onError(error);
      if (/** @type {any} */ (error).status === 409) await reopen(); // another person answered or started a run first
      return false;
    }
  }

  /** Read the events of a run to its end. Reconnects as often as necessary. @param {any} run @param {AbortSignal} signal */
  async function follow(run, signal) {
    const path = `${pathOf(run.thread_id)}/runs/${run.run_id}`;
    const gather = gatherer(view);
    let failures = 0;
    for (;;) {
      let now = "running";
      try {
        for await (const event of deployment.stream(`${path}/stream`, { lastEventId: view.lastEventId ?? FROM_START, signal })) {
          failures = 0;
          gather.take(event);
        }
        now = (await deployment.call("GET", path, { signal })).status;
      } catch (error) {
        if (signal.aborted) return;
        if (/** @type {any} */ (error).status === 404) now = "interrupted"; // rolled back, or deleted
        else if (failures >= RETRY_MS.length) throw error;
      }
      gather.flush();
      if (!LIVE.has(now)) return await ended(run.thread_id, now, signal);
      await pause(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)], signal);
      failures += 1;
    }
  }

  /** @param {string} id @param {string} status @param {AbortSignal} signal */
  async function ended(id, status, signal) {
    const [thread, state] = await read(id, signal);
    batch(() => {
      endSteps(view, status === "error" || status === "timeout" ? "failed" : "done");
      showState(view, state);
      view.error.value ??= thread.error ?? null;
      view.phase.value = "idle";
    });
  }

  /** Load a thread and its state. If the graph cannot load the state, use the values and interrupts of the thread's record. @param {string} id @param {AbortSignal} signal */
  async function read(id, signal) {
    const thread = deployment.call("GET", pathOf(id), { signal });
    const state = deployment.call("GET", `${pathOf(id)}/state`, { signal }).catch(async (/** @type {any} */ error) => {
      if (signal.aborted || error.status !== 424) throw error;
      const { values, interrupts } = await thread;
      return { values, tasks: Object.values(interrupts ?? {}).map((each) => ({ interrupts: each })) };
    });
    return Promise.all([thread, state]);
  }

  /** Cancel the run. Its stream then ends by itself. */
  async function stop() {
    if (!view.runId.value || view.phase.value === "idle") return;
    view.phase.value = "stopping";
    try {
      await deployment.call("POST", `${pathOf(threadId)}/runs/${view.runId.value}/cancel`);
    } catch (error) {
      if (/** @type {any} */ (error).status !== 404) on.onError(error); // the run has ended
    }
  }

  /**
   * Send an edited message. The thread continues from the checkpoint before the original.
   * @param {any} message @param {string} text @param {(body: Record<string, any>, message?: any) => Promise<boolean>} run
   */
  async function branch(message, text, run) {
    try {
      const checkpoint = await before(message.id, following.signal);
      if (!checkpoint) return on.onError({ detail: "The thread has no checkpoint before this message." });
      const at = view.entries.value.findIndex((entry) => entry.key === message.id);
      const changed = { type: "human", content: text, id: newId() };
      const all = view.entries.value;
      view.entries.value = all.slice(0, at);
      const isSent = await run({ input: { messages: [changed] }, checkpoint: { checkpoint_id: checkpoint.checkpoint_id } }, changed);
      if (!isSent && view.phase.value === "idle") view.entries.value = all;
    } catch (error) {
      if (!following.signal.aborted) on.onError(error);
    }
  }

  /** The newest checkpoint without the message; null if there is none. @param {string} messageId @param {AbortSignal} signal */
  async function before(messageId, signal) {
    let oldest;
    for (;;) {
      /** @type {any[]} */
      const states = await deployment.call("POST", `${pathOf(threadId)}/history`, { body: { limit: HISTORY, ...(oldest && { before: { configurable: oldest } }) }, signal });
      const found = states.find((state) => !(state.values?.messages ?? []).some((/** @type {any} */ each) => each.id === messageId));
      if (found) return found.checkpoint;
      if (states.length < HISTORY) return null;
      oldest = { checkpoint_id: states.at(-1).checkpoint.checkpoint_id };
    }
  }

  return { view, open, start, stop, branch, leave, thread: () => threadId };
}

/** The path of a thread. The id comes from the address and may be any text. @param {string|null} threadId */
const pathOf = (threadId) => `/threads/${encodeURIComponent(threadId ?? "")}`;

/** Save the questions, the next nodes and the error of a view. Returns a function that restores them. @param {RunView} view */
function saved(view) {
  const questions = view.questions.value, next = view.next.value, error = view.error.value;
  return () => batch(() => {
    view.questions.value = questions;
    view.next.value = next;
    view.error.value = error;
  });
}

/** @param {RunView} view */
function forget(view) {
  batch(() => {
    beginRun(view);
    view.values.value = null;
    view.entries.value = [];
    view.phase.value = "idle";
  });
  view.known.clear();
}

/** @param {number} ms @param {AbortSignal} signal */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve(undefined)), { once: true });
  });
}
