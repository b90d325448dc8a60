// What a thread's checkpoints tell without their values: which nodes made each, how they branch, and how long nodes took.

/**
 * @typedef {{id?: string, name: string, path?: any[], error?: string | null, interrupts?: {id: string, value: unknown}[], result?: any}} Task
 * @typedef {{checkpoint: {checkpoint_id: string, checkpoint_ns?: string} | null, parent_checkpoint: {checkpoint_id: string} | null,
 *   metadata: Record<string, any> | null, created_at: string | null, next: string[], tasks: Task[], values?: any, interrupts?: any[]}} State
 * @typedef {{lane: number, hasAbove: boolean, hasBelow: boolean, through: number[], merges: number[]}} Lane
 * @typedef {{name: string, from: number, until: number | null, status: "success" | "error" | "asked" | "stopped" | "lost" | "running" | "rest", checkpoint?: string}} Span
 * @typedef {{started_at: string | null, ended_at: string | null, attempts?: {started_at: string, ended_at: string}[]}} RunTimes
 */

const SHORT = 0.01; // of a run: what it does beside its nodes is not shown if it is shorter

/** @param {State} state */
export const idOf = (state) => state.checkpoint?.checkpoint_id ?? "";

/** @param {State} state */
export const parentOf = (state) => state.parent_checkpoint?.checkpoint_id ?? null;

/**
 * What made a checkpoint: the nodes that ran on its parent, or where it came from; a "step" where its parent names no task.
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
 * The tasks of a checkpoint that asked something; `isOpen` while nobody has answered.
 * @param {State} state
 * @returns {{name: string, isOpen: boolean}[]}
 */
export const questionsOf = (state) => state.tasks.filter(hasAsked).map((task) => ({ name: task.name, isOpen: task.result == null }));

/** The task of a checkpoint that failed and has not been run again with success. @param {State} state */
export const failedTask = (state) => state.tasks.find((task) => task.error && task.result == null);

/** @param {Task} task */
const hasAsked = (task) => Boolean(task.interrupts?.length);

/** Whether the run that wrote a checkpoint ended there: one of its tasks asked something, or failed. @param {State} state */
const isStop = (state) => state.tasks.some((task) => hasAsked(task) || task.error);

/**
 * How long runs worked on the step between two checkpoints, in seconds: the time until somebody answered does not count. Null
 * where the runs are not known.
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

/** When the attempts of a run worked. @param {RunTimes} run @param {number} now @returns {{from: number, until: number}[]} */
function attemptsOf(run, now) {
  const lost = (run.attempts ?? []).map((each) => ({ from: time(each.started_at), until: time(each.ended_at) }));
  if (!run.started_at) return lost;
  return [...lost, { from: lost.at(-1)?.until ?? time(run.started_at), until: run.ended_at ? time(run.ended_at) : now }];
}

/**
 * The nodes of a run with when each worked, oldest first: a node works from the checkpoint that names it as a task until
 * the one that follows, and anew from where an attempt was lost. What the run did before its first step and after its last one is there too, if it is not short.
 * @param {State[]} states of the run, and of the checkpoint it began at
 * @param {{runId: string, status: string, startedAt: string | null, endedAt: string | null, lost?: {ended_at: string}[]}} run
 * @returns {Span[]}
 */
export function spansOf(states, { runId, status, startedAt, endedAt, lost = [] }) {
  const ordered = [...states].sort((one, other) => time(one.created_at) - time(other.created_at));
  const begun = startedAt ? time(startedAt) : -Infinity;
  const ended = endedAt ? time(endedAt) : null;
  const isOwn = (/** @type {State} */ state) => state.metadata?.run_id === runId;
  const children = new Map(ordered.filter((state) => isOwn(state) && isStep(state)).map((state) => [parentOf(state), state]));
  const spans = ordered.flatMap((state) => {
    const child = children.get(idOf(state));
    if (!isOwn(state) && !child) return [];
    const until = child ? time(child.created_at) : ended;
    const from = Math.max(time(state.created_at), begun);
    const losses = lost.map((attempt) => time(attempt.ended_at)).filter((at) => at > from && (until === null || at < until));
    const checkpoint = idOf(child ?? state);
    const tasks = (isOwn(state) ? state.tasks : repeated(state)).filter((task) => task.name !== "__start__");
    const how = (/** @type {Task} */ task) => (child ? "success" : endOf(task, state, status));
    return tasks.flatMap((task) => {
      const status = how(task);
      if (status === "waiting") return [];
      return [from, ...losses].map((start, at) => /** @type {Span} */ ({ name: task.name, from: start, until: losses[at] ?? until, status: at < losses.length ? "lost" : status, checkpoint }));
    });
  });
  return [...edge("before the first step", begun, spans[0]?.from, ended), ...spans, ...edge("after the last step", lastEnd(spans), ended, ended)];

  /** What the run did beside its nodes. @param {string} name @param {number} from @param {number | null | undefined} until @param {number | null} last @returns {Span[]} */
  function edge(name, from, until, last) {
    if (!spans.length || until == null || !Number.isFinite(from)) return [];
    const shortest = Math.max(1, ((last ?? until) - begun) * SHORT);
    return until - from > shortest ? [{ name, from, until, status: "rest" }] : [];
  }
}

/** @param {State} state */
const isStep = (state) => (state.metadata?.source ?? "loop") === "loop";

/** The tasks of a checkpoint that a later run repeats: those that asked or failed; others have kept what they wrote. @param {State} state */
function repeated(state) {
  const stopped = state.tasks.filter((task) => hasAsked(task) || task.error);
  return stopped.length ? stopped : state.tasks;
}

/** When the last of them ended; -Infinity where one still works. @param {Span[]} spans */
const lastEnd = (spans) => (spans.some((span) => span.until === null) ? -Infinity : Math.max(...spans.map((span) => /** @type {number} */ (span.until))));

/**
 * What became of a task in the run that wrote its checkpoint, where that run wrote none after it. A result is the run's unless
 * the whole step has one: then a later run has finished the step.
 * @param {Task} task
 * @param {State} state
 * @param {string} status of the run
 * @returns {Span["status"] | "waiting"}
 */
function endOf(task, state, status) {
  if (status === "pending" || status === "running") return task.result == null ? "running" : "success";
  if (hasAsked(task)) return "asked";
  if (task.error) return "error";
  if (status === "success") return isStop(state) ? "success" : "waiting"; // a breakpoint is before it
  return task.result != null && !state.tasks.every((each) => each.result != null) ? "success" : "stopped";
}

/** @param {string | null | undefined} iso */
const time = (iso) => (iso ? Date.parse(iso) : 0);
