// What a thread's checkpoints tell without their values: which nodes made each, how they branch, and how long nodes took.

/**
 * @typedef {{id?: string, name: string, error?: string | null, interrupts?: {id: string, value: unknown}[], result?: any}} Task
 * @typedef {{checkpoint: {checkpoint_id: string, checkpoint_ns?: string} | null, parent_checkpoint: {checkpoint_id: string} | null,
 *   metadata: Record<string, any> | null, created_at: string | null, next: string[], tasks: Task[], values?: any, interrupts?: any[]}} State
 * @typedef {{lane: number, hasAbove: boolean, hasBelow: boolean, through: number[], merges: number[]}} Lane
 * @typedef {{name: string, from: number, until: number | null, status: "success" | "error" | "interrupted" | "running", checkpoint?: string}} Span
 */

/** @param {State} state */
export const idOf = (state) => state.checkpoint?.checkpoint_id ?? "";

/** @param {State} state */
export const parentOf = (state) => state.parent_checkpoint?.checkpoint_id ?? null;

/**
 * What made a checkpoint: the nodes that ran on its parent, or where it came from.
 * @param {State} state
 * @param {State | undefined} parent
 * @returns {{names: string[], isNode: boolean}}
 */
export function makerOf(state, parent) {
  const source = state.metadata?.source ?? "loop";
  if (source !== "loop") return { names: [source], isNode: false };
  const ran = (parent?.tasks ?? []).map((task) => task.name).filter((name) => name !== "__start__");
  return ran.length ? { names: counted(ran), isNode: true } : { names: ["start"], isNode: false };
}

/** @param {string[]} names */
function counted(names) {
  /** @type {Map<string, number>} */
  const times = new Map();
  for (const name of names) times.set(name, (times.get(name) ?? 0) + 1);
  return [...times].map(([name, n]) => (n === 1 ? name : `${name} × ${n}`));
}

/**
 * The keys of the state that a step wrote, as far as its nodes' results say so.
 * @param {State | undefined} parent
 * @returns {string[]}
 */
export function writtenBy(parent) {
  /** @type {Set<string>} */
  const keys = new Set();
  for (const { result } of parent?.tasks ?? []) {
    if (typeof result === "object" && result !== null && !Array.isArray(result)) Object.keys(result).forEach((key) => keys.add(key));
  }
  return [...keys];
}

/**
 * Where each checkpoint of a list (newest first) is drawn, and which lines pass it: a branch has a lane of its own.
 * @param {{id: string, parent: string | null}[]} rows
 * @returns {Lane[]}
 */
export function lanesOf(rows) {
  /** @type {(string | null)[]} */
  const awaited = [];
  return rows.map(({ id, parent }) => {
    const merges = awaited.flatMap((each, at) => (each === id ? [at] : []));
    const hasAbove = merges.length > 0;
    const lane = hasAbove ? /** @type {number} */ (merges.shift()) : freeLane(awaited);
    for (const at of merges) awaited[at] = null;
    awaited[lane] = null;
    const through = awaited.flatMap((each, at) => (each === null ? [] : [at]));
    awaited[lane] = parent;
    while (awaited.length && awaited.at(-1) === null) awaited.pop();
    return { lane, hasAbove, hasBelow: parent !== null, through, merges };
  });
}

/** @param {(string | null)[]} awaited */
function freeLane(awaited) {
  const free = awaited.indexOf(null);
  return free < 0 ? awaited.length : free;
}

/**
 * The newest checkpoint and what it came from: everything else is a branch that was left.
 * @param {{id: string, parent: string | null}[]} rows
 * @returns {Set<string>}
 */
export function mainLine(rows) {
  const parents = new Map(rows.map(({ id, parent }) => [id, parent]));
  /** @type {Set<string>} */
  const line = new Set();
  /** @type {string | null} */
  let id = rows[0]?.id ?? null;
  for (; id !== null && !line.has(id); id = parents.get(id) ?? null) line.add(id);
  return line;
}

/**
 * New states of a thread put before those that are known, newest first; null where some between them are missing.
 * @param {State[]} known
 * @param {State[]} fresh
 * @returns {State[] | null}
 */
export function withNewer(known, fresh) {
  if (!known.length || !fresh.length) return fresh.length ? fresh : known;
  const ids = new Set(known.map(idOf));
  const overlap = fresh.findIndex((state) => ids.has(idOf(state)));
  if (overlap < 0) return null;
  const updated = new Map(fresh.map((state) => [idOf(state), state]));
  return [...fresh.slice(0, overlap), ...known.map((state) => updated.get(idOf(state)) ?? state)];
}

/**
 * The nodes of a run with when each worked, oldest first: a node works from the checkpoint that names it as a task until
 * the one that follows.
 * @param {State[]} states of the run, and of the checkpoint it began at
 * @param {{runId: string, startedAt: string | null, endedAt: string | null}} run
 * @returns {Span[]}
 */
export function spansOf(states, { runId, startedAt, endedAt }) {
  const ordered = [...states].sort((one, other) => time(one.created_at) - time(other.created_at));
  const begun = startedAt ? time(startedAt) : -Infinity;
  const ended = endedAt ? time(endedAt) : null;
  const isOwn = (/** @type {State} */ state) => state.metadata?.run_id === runId;
  const children = new Map(ordered.filter((state) => isOwn(state) && isStep(state)).map((state) => [parentOf(state), state]));
  return ordered.flatMap((state) => {
    const child = children.get(idOf(state));
    if (!isOwn(state) && !child) return [];
    const from = Math.max(time(state.created_at), begun);
    return state.tasks.filter((task) => task.name !== "__start__").flatMap((task) => spanOf(task, state, from, child, ended));
  });
}

/** @param {State} state */
const isStep = (state) => (state.metadata?.source ?? "loop") === "loop";

/**
 * @param {Task} task
 * @param {State} state
 * @param {number} from
 * @param {State | undefined} child
 * @param {number | null} ended
 * @returns {Span[]}
 */
function spanOf(task, state, from, child, ended) {
  const checkpoint = idOf(child ?? state);
  const status = task.error ? "error" : task.interrupts?.length && !child ? "interrupted" : child ? "success" : ended === null ? "running" : "interrupted";
  return [{ name: task.name, from, until: child ? time(child.created_at) : ended, status, checkpoint }];
}

/** @param {string | null | undefined} iso */
const time = (iso) => (iso ? Date.parse(iso) : 0);
