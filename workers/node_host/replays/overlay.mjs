/**
 * The store of a replayed run: reads see the deployment's store, writes are kept in memory until the run ends.
 *
 * `workers/graph_host/replays/overlay.py` documents the rules. Operations are described as `store.mjs` sends them.
 */

import { dumps, loads } from "../serialization.mjs";

const { isArray } = Array;
const NUMBERS = /** @type {Record<string, (a: any, b: any) => boolean>} */ ({
  $gt: (a, b) => a > b,
  $gte: (a, b) => a >= b,
  $lt: (a, b) => a < b,
  $lte: (a, b) => a <= b,
});

/** The items that one run has written: null for a deleted item. */
export class StoreOverlay {
  #items = new Map();
  #vectors = new Map();

  /** Return the operations to send to the runner: the reads, with limits that leave room for the run's own items. */
  reads(ops) {
    return ops
      .filter(({ op }) => op !== "put")
      .map((op) => ({
        ...op,
        ...("refresh" in op ? { refresh: false } : {}),
        ...("limit" in op ? { limit: op.limit + op.offset + this.#items.size, offset: 0 } : {}),
        ...("max_depth" in op ? { max_depth: null } : {}),
      }));
  }

  /** Return the results of all operations. `stored` are the runner's answers to the reads. */
  answers(ops, stored) {
    const rest = [...stored];
    const results = ops.map((op) => (op.op === "put" ? null : this.#read(op, rest.shift())));
    ops.filter(({ op }) => op === "put").forEach((op) => this.#put(op));
    return results;
  }

  #read(op, stored) {
    if (op.op === "get") {
      const key = keyOf(op);
      return this.#items.has(key) ? this.#items.get(key) : stored;
    }
    return op.op === "search" ? this.#search(op, stored) : this.#namespaces(op, stored);
  }

  #put(op) {
    const key = keyOf(op);
    const now = new Date().toISOString();
    const existing = this.#items.get(key);
    this.#vectors.set(key, (op.vectors ?? []).map(([, vector]) => vector));
    this.#items.set(
      key,
      op.value === null
        ? null
        : {
            namespace: op.namespace,
            key: op.key,
            value: loads(dumps(op.value)),
            created_at: existing?.created_at ?? now,
            updated_at: now,
          },
    );
  }

  /** Order the items as the service does: by score, those without one last, then the last changed first. */
  #search({ namespace: prefix, filter, near, limit, offset }, stored) {
    const kept = stored.filter((item) => !this.#items.has(keyOf(item)));
    const added = [...this.#items]
      .filter(([, item]) => item !== null && startsWith(item.namespace, prefix) && matches(item.value, filter ?? {}))
      .map(([key, item]) => ({ ...item, score: scoreOf(near, this.#vectors.get(key) ?? []) }))
      .reverse();
    const all = [...added, ...kept];
    if (near) {
      all.sort((a, b) => (b.score ?? -Infinity) - (a.score ?? -Infinity) || 0);
    }
    return all.slice(offset, offset + limit);
  }

  /** Return the namespaces of both. One whose items this run has deleted is still listed. */
  #namespaces({ matches: conditions, max_depth: depth, limit, offset }, stored) {
    const own = [...this.#items.values()]
      .filter((item) => item !== null && conditions.every(([kind, labels]) => fits(item.namespace, kind, labels)))
      .map(({ namespace }) => namespace);
    const listed = [...own, ...stored].map((namespace) => namespace.slice(0, depth ?? undefined).join("\0"));
    const sorted = [...new Set(listed)].sort().map((labels) => labels.split("\0"));
    return sorted.slice(offset, offset + limit);
  }
}

function keyOf({ namespace, key }) {
  return dumps([namespace, key]);
}

function startsWith(namespace, prefix) {
  return prefix.every((label, position) => namespace[position] === label);
}

function fits(namespace, kind, labels) {
  if (namespace.length < labels.length) {
    return false;
  }
  const part = kind === "prefix" ? namespace : namespace.slice(namespace.length - labels.length);
  return labels.every((label, position) => label === "*" || label === part[position]);
}

/** Return the cosine similarity of the nearest vector; null if there is none. */
function scoreOf(near, vectors) {
  const scores = near ? vectors.map((vector) => similarity(near, vector)).filter(Number.isFinite) : [];
  return scores.length ? Math.max(...scores) : null;
}

function similarity(a, b) {
  const product = a.reduce((sum, x, position) => sum + x * b[position], 0);
  return Math.min(product / (Math.hypot(...a) * Math.hypot(...b)), 1);
}

/** Whether a value matches a filter, by the rules of `shared/store.py`. */
function matches(value, filter) {
  return Object.entries(filter).every(([key, expected]) => {
    const found = typeof value === "object" && value !== null && Object.hasOwn(value, key) ? value[key] : null;
    return compares(found, expected);
  });
}

function compares(value, expected) {
  if (typeof expected !== "object" || expected === null || isArray(expected)) {
    return equals(value, expected);
  }
  const operators = Object.entries(expected);
  if (operators.some(([key]) => key.startsWith("$"))) {
    return operators.every(([operator, operand]) => holds(value, operator, operand));
  }
  return typeof value === "object" && value !== null && !isArray(value) && matches(value, expected);
}

function holds(value, operator, operand) {
  if (operator === "$eq" || operator === "$ne") {
    return equals(value, operand) === (operator === "$eq");
  }
  return typeof value === typeof operand && NUMBERS[operator](value, operand);
}

function equals(a, b) {
  return dumps(a) === dumps(b);
}
