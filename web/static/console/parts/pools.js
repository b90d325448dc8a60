// The load of a pool of runners.

/** Return whether runs wait and no runner claims them. @param {{runners: number, draining: number, pending: number}} pool */
export const isUnserved = (pool) => pool.runners - pool.draining <= 0 && pool.pending > 0;

/** @param {{runners: number, draining: number, pending: number, running: number, slots: number}} pool @returns {"good" | "warn" | "bad"} */
export function saturationOf(pool) {
  const part = pool.slots ? pool.running / pool.slots : 0;
  if (isUnserved(pool) || (part >= 1 && pool.pending > 0)) return "bad";
  return part >= 0.8 ? "warn" : "good";
}
