// Starts, follows, stops and rejoins the runs of one thread. A run is created first and joined then, from its first event:
// so a new run, one found after a reload and one whose connection broke are followed in the same way.

import { batch } from "../core/dom.js";
import { newId } from "./messages.js";
import { addMessage, beginRun, endSteps, gatherer, runView, showState } from "./run_view.js";

const MODES = ["values", "messages-tuple", "custom", "tasks", "tools"]; // `tasks` says all that `updates` does, and when nodes begin
const FROM_START = "-1";
const AGAIN_MS = [500, 1000, 2000, 5000];
const KEPT_MS = 15 * 60 * 1000; // how long the service keeps the events of a run that has ended
const HISTORY = 20; // states that are looked at a time
const LIVE = new Set(["pending", "running"]);

/**
 * @typedef {import("./run_view.js").RunView} RunView
 * @typedef {ReturnType<typeof runControl>} RunControl
 */

/**
 * @param {any} deployment what `core/api.js` gives for a deployment's name
 * @param {{onThread: (id: string) => void, onError: (error: any) => void}} on
 */
export function runControl(deployment, on) {
  const view = runView();
  let threadId = /** @type {string|null} */ (null);
  let following = new AbortController();

  /** Leaves whatever is followed; the run itself goes on. */
  function leave() {
    following.abort();
    following = new AbortController();
  }

  /** Shows a thread, and joins the run that works on it. @param {string|null} id */
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
    const back = standing(view);
    beginRun(view);
    if (!isLive) back();
    view.isMeasured = false;
    view.runId.value = run.run_id;
    if (isLive) view.phase.value = "waiting";
    await follow(run, signal);
  }

  /**
   * Creates a run and follows it to its end.
   * @param {{assistantId: string, graphId: string, body: Record<string, any>, message?: any}} request
   */
  async function start({ assistantId, graphId, body, message }) {
    leave();
    const { signal } = following;
    const back = standing(view);
    beginRun(view, { goesOn: "command" in body || body.input === null });
    view.phase.value = "waiting";
    try {
      if (threadId === null) {
        const made = await deployment.call("POST", "/threads", { body: { metadata: { graph_id: graphId } }, signal });
        threadId = made.thread_id;
        on.onThread(made.thread_id);
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
      if (/** @type {any} */ (error).status === 409) await reopen(); // somebody else was faster
      return false;
    }
  }

  /** Reads a run's events to its end, over as many connections as it takes. @param {any} run @param {AbortSignal} signal */
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
        else if (failures >= AGAIN_MS.length) throw error;
      }
      gather.flush();
      if (!LIVE.has(now)) return await ended(run.thread_id, now, signal);
      await pause(AGAIN_MS[Math.min(failures, AGAIN_MS.length - 1)], signal);
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

  /** A thread and its state; what the thread itself says of that, where its graph cannot read it. @param {string} id @param {AbortSignal} signal */
  async function read(id, signal) {
    const thread = deployment.call("GET", pathOf(id), { signal });
    const state = deployment.call("GET", `${pathOf(id)}/state`, { signal }).catch(async (/** @type {any} */ error) => {
      if (signal.aborted || error.status !== 424) throw error;
      const { values, interrupts } = await thread;
      return { values, tasks: Object.values(interrupts ?? {}).map((each) => ({ interrupts: each })) };
    });
    return Promise.all([thread, state]);
  }

  /** Has the run stopped; its stream then ends by itself. */
  async function stop() {
    if (!view.runId.value || view.phase.value === "idle") return;
    view.phase.value = "stopping";
    try {
      await deployment.call("POST", `${pathOf(threadId)}/runs/${view.runId.value}/cancel`);
    } catch (error) {
      if (/** @type {any} */ (error).status !== 404) on.onError(error); // it has ended meanwhile
    }
  }

  /**
   * Sends a message again, changed: the thread goes on from before it.
   * @param {any} message @param {string} text @param {(body: Record<string, any>, message?: any) => Promise<boolean>} run
   */
  async function branch(message, text, run) {
    try {
      const checkpoint = await before(message.id, following.signal);
      if (!checkpoint) return on.onError({ detail: "The thread has no checkpoint from before this message." });
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

  /** The newest checkpoint that does not have a message yet. @param {string} messageId @param {AbortSignal} signal */
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

/** An id that a link names may be anything. @param {string|null} threadId */
const pathOf = (threadId) => `/threads/${encodeURIComponent(threadId ?? "")}`;

/** What the thread stands at; a function that shows it again. @param {RunView} view */
function standing(view) {
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
