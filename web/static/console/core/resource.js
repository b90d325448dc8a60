// What a component shows of the service: loaded when it appears, given up when it goes.

import { isAborted } from "./api.js";
import { useEffect, useMemo, useRef, useState } from "./dom.js";

/**
 * Load something, again whenever `deps` change, and every so many milliseconds while the tab is visible.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {any[]} deps
 * @param {{every?: number}} options
 * @returns {{data: T | undefined, error: any, loading: boolean, reload: () => void}}
 */
export function useResource(load, deps = [], { every } = {}) {
  const asked = useMemo(() => ({}), deps);
  const [state, setState] = useState(/** @type {any} */ ({ asked }));
  const [round, setRound] = useState(0);
  const newest = useRef(load);
  newest.current = load;

  useEffect(() => {
    const leaving = new AbortController();
    const show = (/** @type {any} */ change) =>
      leaving.signal.aborted || setState((/** @type {any} */ before) => change(before.asked === asked ? before : { asked }));
    const look = async () => {
      try {
        const data = await newest.current(leaving.signal);
        show((/** @type {any} */ before) => (before.done && !before.error && isSame(before.data, data) ? before : { asked, data, done: true }));
      } catch (error) {
        if (!isAborted(error)) show((/** @type {any} */ before) => ({ ...before, error, done: true }));
      }
    };
    void look();
    const stop = every ? repeat(look, every, leaving.signal) : () => {};
    return () => {
      leaving.abort();
      stop();
    };
  }, [asked, round, every]);

  const reload = () => setRound((before) => before + 1);
  if (state.asked !== asked) return { data: undefined, error: null, loading: true, reload };
  return { data: state.data, error: state.error ?? null, loading: !state.done, reload };
}

/** Do something again and again while the tab is visible, each time after the one before has ended. @param {() => Promise<void>} look @param {number} every @param {AbortSignal} signal */
function repeat(look, every, signal) {
  let isBusy = false, at = Date.now();
  const tick = async () => {
    if (isBusy || document.hidden || Date.now() - at < every - 50) return;
    isBusy = true;
    await look();
    at = Date.now();
    isBusy = false;
  };
  const timer = setInterval(tick, Math.min(every, 1000));
  document.addEventListener("visibilitychange", tick, { signal });
  return () => clearInterval(timer);
}

/** What did not change is not drawn again. @param {any} one @param {any} other */
const isSame = (one, other) => one === other || JSON.stringify(one) === JSON.stringify(other);

/**
 * Follow an async iterator: `data` are its newest items, shown once a frame.
 * @template T
 * @param {(signal: AbortSignal) => AsyncIterable<T>} open
 * @param {any[]} deps
 * @param {{most?: number}} options
 * @returns {{data: T[], error: any, loading: boolean, reload: () => void}} `loading` until the iterator has ended
 */
export function useStream(open, deps = [], { most = 5000 } = {}) {
  const asked = useMemo(() => ({}), deps);
  const [state, setState] = useState(/** @type {any} */ ({ asked, data: [] }));
  const [round, setRound] = useState(0);
  const newest = useRef(open);
  newest.current = open;

  useEffect(() => {
    const leaving = new AbortController();
    /** @type {T[]} */
    const items = [];
    let frame = 0;
    const show = (/** @type {any} */ more = {}) => {
      cancelAnimationFrame(frame);
      frame = 0;
      if (!leaving.signal.aborted) setState({ asked, data: items.slice(-most), ...more });
    };
    const follow = async () => {
      try {
        for await (const item of newest.current(leaving.signal)) {
          items.push(item);
          if (items.length > 2 * most) items.splice(0, most);
          frame ||= requestAnimationFrame(() => show());
        }
        show({ done: true });
      } catch (error) {
        if (!isAborted(error)) show({ error, done: true });
      }
    };
    void follow();
    return () => {
      leaving.abort();
      cancelAnimationFrame(frame);
    };
  }, [asked, round]);

  const reload = () => setRound((before) => before + 1);
  if (state.asked !== asked) return { data: [], error: null, loading: true, reload };
  return { data: state.data, error: state.error ?? null, loading: !state.done, reload };
}
