// Hooks that load data of the service for a component. They cancel their requests when the component is removed.

import { isAborted, isTemporary } from "./api.js";
import { useEffect, useMemo, useRef, useState } from "./dom.js";

const RETRY_MS = 5_000;

/**
 * Load data when the component appears and when `deps` change. With `every`, load again after so many milliseconds while the
 * tab is visible. After an error the data stays, and the next successful request removes the error. A temporary error is retried.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {any[]} deps
 * @param {{every?: number}} options
 * @returns {{data: T | undefined, error: any, loading: boolean, reload: () => void}}
 */
export function useResource(load, deps = [], { every } = {}) {
  const request = useMemo(() => ({}), deps);
  const [state, setState] = useState(/** @type {any} */ ({ request }));
  const [round, setRound] = useState(0);
  const newest = useRef(load);
  newest.current = load;

  useEffect(() => {
    const controller = new AbortController();
    const show = (/** @type {any} */ change) =>
      controller.signal.aborted || setState((/** @type {any} */ before) => change(before.request === request ? before : { request }));
    let timer = 0;
    const refresh = async () => {
      clearTimeout(timer);
      try {
        const data = await newest.current(controller.signal);
        show((/** @type {any} */ before) => (before.done && !before.error && isSame(before.data, data) ? before : { request, data, done: true }));
      } catch (error) {
        if (isAborted(error)) return;
        show((/** @type {any} */ before) => ({ ...before, error, done: true }));
        if (isTemporary(error) && !controller.signal.aborted) timer = setTimeout(refresh, RETRY_MS);
      }
    };
    void refresh();
    const stop = every ? repeat(refresh, every, controller.signal) : () => {};
    return () => {
      controller.abort();
      clearTimeout(timer);
      stop();
    };
  }, [request, round, every]);

  const reload = () => setRound((before) => before + 1);
  if (state.request !== request) return { data: undefined, error: null, loading: true, reload };
  return { data: state.data, error: state.error ?? null, loading: !state.done, reload };
}

/** Repeat a function while the tab is visible. Calls do not overlap. @param {() => Promise<void>} refresh @param {number} every @param {AbortSignal} signal */
function repeat(refresh, every, signal) {
  let isBusy = false, at = Date.now();
  const tick = async () => {
    if (isBusy || document.hidden || Date.now() - at < every - 50) return;
    isBusy = true;
    await refresh();
    at = Date.now();
    isBusy = false;
  };
  const timer = setInterval(tick, Math.min(every, 1000));
  document.addEventListener("visibilitychange", tick, { signal });
  return () => clearInterval(timer);
}

/** Return whether two answers are equal, so that the component is not drawn again. @param {any} one @param {any} other */
const isSame = (one, other) => one === other || JSON.stringify(one) === JSON.stringify(other);

/**
 * Follow an async iterator. `data` holds its newest items and is updated once per animation frame. After a temporary error the
 * iterator is opened again.
 * @template T
 * @param {(signal: AbortSignal) => AsyncIterable<T>} open
 * @param {any[]} deps
 * @param {{most?: number}} options
 * @returns {{data: T[], error: any, loading: boolean, reload: () => void}} `loading`: until the iterator ends
 */
export function useStream(open, deps = [], { most = 5000 } = {}) {
  const request = useMemo(() => ({}), deps);
  const [state, setState] = useState(/** @type {any} */ ({ request, data: [] }));
  const [round, setRound] = useState(0);
  const newest = useRef(open);
  newest.current = open;

  useEffect(() => {
    const controller = new AbortController();
    /** @type {T[]} */
    const items = [];
    let frame = 0, timer = 0;
    const show = (/** @type {any} */ more = {}) => {
      cancelAnimationFrame(frame);
      frame = 0;
      if (!controller.signal.aborted) setState({ request, data: items.slice(-most), ...more });
    };
    const follow = async () => {
      try {
        for await (const item of newest.current(controller.signal)) {
          items.push(item);
          if (items.length > 2 * most) items.splice(0, most);
          frame ||= requestAnimationFrame(() => show());
        }
        show({ done: true });
      } catch (error) {
        if (isAborted(error)) return;
        show({ error, done: true });
        if (isTemporary(error) && !controller.signal.aborted) timer = setTimeout(reload, RETRY_MS);
      }
    };
    void follow();
    return () => {
      controller.abort();
      clearTimeout(timer);
      cancelAnimationFrame(frame);
    };
  }, [request, round]);

  const reload = () => setRound((before) => before + 1);
  if (state.request !== request) return { data: [], error: null, loading: true, reload };
  return { data: state.data, error: state.error ?? null, loading: !state.done, reload };
}
