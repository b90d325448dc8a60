/**
 * Times of a run's nodes, as its saver observes them.
 *
 * LangGraph calls the saver at each step and at the end of each task anyway, so a run pays only for reading the clock.
 */

import { masked } from "../masking.mjs";

const now = performance.now.bind(performance);

export const MAX_SPANS = 500; // of an attempt; later ones are counted and dropped
export const MAX_NAME = 100;
const MAX_DEPTH = 8; // levels of subgraphs
const NULL_TASK = "00000000-0000-0000-0000-000000000000"; // the writes of a command, which belong to no node
const TASKS = "__pregel_tasks"; // the channel of Send objects
const [ERROR, INTERRUPT, RESUME] = ["__error__", "__interrupt__", "__resume__"];
const [PULL, PUSH] = ["~__pregel_pull, ", "~__pregel_push, "];
const START = `${PULL}__start__`; // the task that writes the input

/**
 * When each step of a run began and each of its tasks ended.
 *
 * A node runs from the checkpoint before its step until its writes are saved.
 */
export class NodeTimes {
  began = now();
  dropped = 0;
  #steps = new Map(); // by namespace and checkpoint id: begin, and the nodes of its Send objects
  #tasks = new Map(); // by id
  #seen = new Map(); // subgraphs and callers, with the time of the first observation
  #loaded = new Map(); // nodes of the Send objects in the checkpoints of earlier runs, by id

  /** Record that a checkpoint is saved: the tasks of the next step begin. */
  beginStep(ns, checkpoint) {
    if (this.#steps.size < MAX_SPANS) {
      this.#steps.set(`${ns}\0${checkpoint.id}`, { ns, began: now(), sentTo: sentTo(checkpoint) });
      if (ns) {
        this.observe(ns);
      }
    }
  }

  /** Record that a subgraph, or a model or tool that a node calls, begins: its outer nodes are running. */
  observe(ns) {
    if (this.#seen.size < MAX_SPANS && !this.#seen.has(ns)) {
      this.#seen.set(ns, now());
    }
  }

  /** Record a checkpoint that the run has loaded. Its step began in an earlier run. */
  continueFrom(checkpoint) {
    if (this.#loaded.size < MAX_SPANS) {
      this.#loaded.set(checkpoint.id, sentTo(checkpoint));
    }
  }

  /** Record that a task ended, and how. The answer that a node has read from `interrupt` is not its end. */
  endTask(ns, checkpointId, id, path, writes) {
    if (!path || path === START || !writes.length || id === NULL_TASK) {
      return;
    }
    const [channel, value] = writes[0];
    let status = null;
    if ([ERROR, INTERRUPT, RESUME].includes(channel)) {
      if (writes.every(([name]) => name === RESUME)) {
        return;
      }
      const isInterrupted = writes.some(([name]) => name === INTERRUPT);
      status = channel === ERROR ? masked(String(value?.name ?? "Error")) : isInterrupted ? "interrupted" : null;
    }
    if (this.#tasks.has(id) || this.#tasks.size < MAX_SPANS) {
      this.#tasks.set(id, { ns, checkpointId, path, ended: now(), status });
    } else {
      this.dropped++;
    }
  }

  /**
   * Return the spans of the nodes in milliseconds from `began`.
   *
   * @param {{id: string, name: string}[]} unfinished the tasks at which the run stopped; they last until the run's end
   */
  spans(unfinished) {
    const spans = new Map();
    for (const [id, task] of this.#tasks) {
      if (task.ns.split("|").length <= MAX_DEPTH) {
        spans.set(id, this.#span(id, task));
      }
    }
    for (const ns of this.#seen.keys()) {
      this.#addOuter(spans, ns);
    }
    const root = [...this.#steps.values()].filter((step) => !step.ns).map((step) => step.began);
    const last = Math.max(this.began, ...root);
    for (const { id, name } of unfinished) {
      if (!spans.has(id)) {
        spans.set(id, this.#openSpan(id, name, last, null));
      }
    }
    return [...spans.values()];
  }

  milliseconds(at = now()) {
    return Math.round((at - this.began) * 100) / 100;
  }

  #span(id, { ns, checkpointId, path, ended, status }) {
    const step = this.#steps.get(`${ns}\0${checkpointId}`);
    const within = nodeAround(ns);
    const begun = step?.began ?? (within === null ? this.began : this.#startOf(within));
    const sent = step?.sentTo ?? this.#loaded.get(checkpointId) ?? [];
    return {
      id,
      kind: "node",
      name: nameOf(path, sent).slice(0, MAX_NAME),
      from: this.milliseconds(begun),
      until: this.milliseconds(ended),
      checkpoint: checkpointId,
      within,
      ...(ns ? { ns } : {}),
      ...(status === null ? {} : { error: status }),
    };
  }

  #startOf(id) {
    const task = this.#tasks.get(id);
    return this.#steps.get(`${task?.ns}\0${task?.checkpointId}`)?.began ?? this.began;
  }

  /** Add spans of the nodes around a subgraph that have not ended. */
  #addOuter(spans, ns) {
    let within = null;
    nodesAround(ns).forEach((outer, depth) => {
      if (!spans.has(outer.id) && depth < MAX_DEPTH) {
        const times = [...this.#seen].filter(([seen]) => seen.startsWith(outer.ns)).map(([, at]) => at);
        spans.set(outer.id, this.#openSpan(outer.id, outer.name, Math.min(...times), within));
      }
      within = outer.id;
    });
  }

  #openSpan(id, name, begun, within) {
    return {
      id, kind: "node", name: name.slice(0, MAX_NAME), from: this.milliseconds(begun), until: null,
      checkpoint: null, within,
    };
  }
}

/** Return the nodes around a subgraph, the outermost first. A namespace is a list of `name:task`. */
export function nodesAround(ns) {
  const parts = ns ? ns.split("|") : [];
  return parts.flatMap((part, depth) => {
    const colon = part.lastIndexOf(":");
    const place = parts.slice(0, depth + 1).join("|");
    return colon < 0 ? [] : [{ id: part.slice(colon + 1), name: part.slice(0, colon), ns: place }];
  });
}

/** Return the id of the node around a subgraph; null for the graph itself. */
export function nodeAround(ns) {
  return nodesAround(ns).at(-1)?.id ?? null;
}

function sentTo(checkpoint) {
  const sends = checkpoint.channel_values[TASKS] ?? [];
  return sends.slice(0, MAX_SPANS).map((send) => String(send?.node ?? "task").slice(0, MAX_NAME));
}

/** Return the node of a task's path. A path of a `Send` has its position among those of the checkpoint. */
function nameOf(path, sent) {
  if (path.startsWith(PULL)) {
    return path.slice(PULL.length);
  }
  const position = path.startsWith(PUSH) ? path.slice(PUSH.length).split(", ")[0] : "";
  return /^\d+$/.test(position) ? (sent[Number(position)] ?? "task") : "task";
}
