// The checkpoints of a thread, loaded page by page without their values. States with values are loaded one at a time.

import { batch, signal } from "../core/dom.js";
import { isAborted } from "../core/api.js";
import { idOf, withNewer } from "./checkpoints.js";

/** @typedef {import("./checkpoints.js").State} State */

const PAGE = 100;
const NEWEST = 20;
const STATES_KEPT = 30;
const SUMMARY = ["next", "tasks", "checkpoint", "metadata", "created_at", "parent_checkpoint", "interrupts"];
const TOO_LARGE = 413;

/**
 * @param {{call: Function}} api of the deployment
 * @param {string} thread
 * @param {Record<string, any>} [filter] of the checkpoints' metadata
 */
export function createHistory(api, thread, filter) {
  /** @type {import("../../vendor/signals.js").Signal<State[]>} */
  const rows = signal([]);
  const isWhole = signal(false);
  const error = signal(/** @type {any} */ (null));
  const isLoading = signal(false);
  const leaving = new AbortController();
  let size = PAGE;

  /** @param {{before?: string, limit: number}} wanted @returns {Promise<{states: State[], isLast: boolean}>} */
  async function page({ before, limit }) {
    const asked = Math.min(limit, size);
    const body = { limit: asked, select: SUMMARY, ...(before && { before }), ...(filter && { metadata: filter }) };
    try {
      const states = await api.call("POST", `/threads/${encodeURIComponent(thread)}/history`, { body, signal: leaving.signal });
      return { states, isLast: states.length < asked };
    } catch (failure) {
      if (/** @type {any} */ (failure).status !== TOO_LARGE || asked === 1) throw failure;
      size = Math.ceil(asked / 4);
      return page({ before, limit });
    }
  }

  let last = Promise.resolve();
  let newer = /** @type {Promise<void> | null} */ (null); // a refresh that has not started
  let older = /** @type {Promise<void> | null} */ (null); // a page that is loading

  /** Queue a read. None is skipped, because the last refresh shows the end of a run. @param {() => Promise<void>} read */
  function next(read) {
    last = last.then(() => run(read));
    return last;
  }

  /** @param {() => Promise<void>} read */
  async function run(read) {
    isLoading.value = true;
    try {
      await read();
      error.value = null;
    } catch (failure) {
      if (!isAborted(failure)) error.value = failure;
    } finally {
      isLoading.value = false;
    }
  }

  const begin = async () => {
    const { states, isLast } = await page({ limit: PAGE });
    batch(() => {
      rows.value = states;
      isWhole.value = isLast;
    });
  };

  return {
    rows, isWhole, error, isLoading,
    /** Load the next older page. */
    more: () => (older ??= next(async () => {
      const oldest = rows.value.at(-1);
      if (!oldest) return begin();
      if (isWhole.value) return;
      const { states, isLast } = await page({ before: idOf(oldest), limit: PAGE });
      batch(() => {
        rows.value = [...rows.value, ...states];
        isWhole.value = isLast;
      });
    }).finally(() => { older = null; })),
    /** Load the checkpoints that are newer than the newest known one. */
    refresh: () => (newer ??= next(async () => {
      newer = null;
      if (!rows.value.length) return begin();
      const { states } = await page({ limit: NEWEST });
      const all = withNewer(rows.value, states);
      if (all) rows.value = all;
      else await begin();
    })),
    leave: () => leaving.abort(),
  };
}

/**
 * A cache of states with their values, by least recent use.
 * @param {{call: Function}} api
 * @param {string} thread
 */
export function createStates(api, thread) {
  /** @type {Map<string, Promise<State>>} */
  const kept = new Map();
  return {
    /** @param {string} checkpoint @returns {Promise<State>} */
    load(checkpoint) {
      const found = kept.get(checkpoint) ?? api.call("GET", `/threads/${encodeURIComponent(thread)}/state/${encodeURIComponent(checkpoint)}`);
      kept.delete(checkpoint);
      kept.set(checkpoint, found);
      if (kept.size > STATES_KEPT) kept.delete(/** @type {string} */ (kept.keys().next().value));
      found.catch(() => kept.delete(checkpoint));
      return found;
    },
  };
}
