// Checkpoints of a thread without their values: the nodes that wrote each, their branches, and the times between them.

/**
 * @typedef {{id?: string, name: string, path?: any[], error?: string | null, interrupts?: {id: string, value: unknown}[], result?: any}} Task
 * @typedef {{checkpoint: {checkpoint_id: string, checkpoint_ns?: string} | null, parent_checkpoint: {checkpoint_id: string} | null,
 *   metadata: Record<string, any> | null, created_at: string | null, next: string[], tasks: Task[], values?: any, interrupts?: any[]}} State
 * @typedef {{lane: number, hasAbove: boolean, hasBelow: boolean, through: number[], merges: number[]}} Lane
 * @typedef {{started_at: string | null, ended_at: string | null, attempts?: {started_at: string, ended_at: string}[]}} RunTimes
 */

/** @param {State} state */
export const idOf = (state) => state.checkpoint?.checkpoint_id ?? "";

/** @param {State} state */
export const parentOf = (state) => state.parent_checkpoint?.checkpoint_id ?? null;

/**
 * Return the origin of a checkpoint: the nodes that ran after its parent, or its source. "step" if the parent names no task.
 * @param {State} state
 * @param {State | undefined} parent
 * @returns {{names: string[], isNode: boolean}}
 */
export function makerOf(state, parent) {
  const source = state.metadata?.source ?? "loop";
  if (source !== "loop") return { names: [source], isNode: false };
  const tasks = (parent?.tasks ?? []).map((task) => task.name);
  const ran = tasks.filter((name) => name !== "__start__");
  return ran.length ? { names: counted(ran), isNode: true } : { names: [tasks.length ? "start" : "step"], isNode: false };
}

/** @param {string[]} names */
function counted(names) {
  /** @type {Map<string, number>} */
  const times = new Map();
  for (const name of names) times.set(name, (times.get(name) ?? 0) + 1);
  return [...times].map(([name, n]) => (n === 1 ? name : `${name} × ${n}`));
}

/**
 * Return the keys of the state in the results of a step's nodes.
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
 * Return the lane of each checkpoint of a list (newest first), and the lines that pass it. Each branch has its lane.
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
 * Return the ids of the newest checkpoint and its ancestors. All other checkpoints are on abandoned branches.
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
 * Return new states of a thread followed by the known ones, newest first. Returns null if states between them are missing.
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
 * Return the tasks of a checkpoint that asked a question. `isOpen`: the question has no answer yet.
 * @param {State} state
 * @returns {{name: string, isOpen: boolean}[]}
 */
export const questionsOf = (state) => state.tasks.filter(hasAsked).map((task) => ({ name: task.name, isOpen: task.result == null }));

/** Return the task of a checkpoint that failed and did not succeed in a later run. @param {State} state */
export const failedTask = (state) => state.tasks.find((task) => task.error && task.result == null);

/** @param {Task} task */
const hasAsked = (task) => Boolean(task.interrupts?.length);

/** Whether a run ended at a checkpoint: one of its tasks asked a question, or failed. @param {State} state */
const isStop = (state) => state.tasks.some((task) => hasAsked(task) || task.error);

/**
 * Return how many seconds runs executed the step between two checkpoints, without the time that a question waited for its
 * answer. Returns null if the runs are not known.
 * @param {State} state
 * @param {State | undefined} parent
 * @param {Map<string, RunTimes>} runs by id
 * @param {number} [now] milliseconds
 * @returns {number | null}
 */
export function secondsOf(state, parent, runs, now = Date.now()) {
  if (!parent?.created_at || !state.created_at) return null;
  const [from, until] = [time(parent.created_at), time(state.created_at)];
  const [own, before] = [state.metadata?.run_id, parent.metadata?.run_id];
  const run = runs.get(own);
  if (!run) return own === before ? (until - from) / 1000 : null;
  const stopped = own !== before && isStop(parent) ? runs.get(before) : undefined;
  const spans = [run, ...(stopped ? [stopped] : [])].flatMap((each) => attemptsOf(each, now));
  return spans.reduce((sum, span) => sum + Math.max(Math.min(span.until, until) - Math.max(span.from, from), 0), 0) / 1000;
}

/** Return the periods of a run's attempts. @param {RunTimes} run @param {number} now @returns {{from: number, until: number}[]} */
function attemptsOf(run, now) {
  const lost = (run.attempts ?? []).map((each) => ({ from: time(each.started_at), until: time(each.ended_at) }));
  if (!run.started_at) return lost;
  return [...lost, { from: lost.at(-1)?.until ?? time(run.started_at), until: run.ended_at ? time(run.ended_at) : now }];
}

/** @param {string | null | undefined} iso */
const time = (iso) => (iso ? Date.parse(iso) : 0);
