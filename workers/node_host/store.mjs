/**
 * The store of graph code. Each batch of operations is one question to the runner.
 *
 * With a semantic index, the project's embedding function adds vectors to the operations before they are sent.
 */

import { createHash } from "node:crypto";

import { current } from "./current.mjs";
import * as frames from "./frames.mjs";
import { parseDocument } from "./json.mjs";
import { LoadFailed, loadObject } from "./loading.mjs";
import { dumps } from "./serialization.mjs";

const { isArray } = Array;
const { hasOwn } = Object;
const { setImmediate } = globalThis;
const MAX_TEXTS = 1_000; // of one batch
const WHOLE = ["$"]; // the path of the whole value

/** The store refuses an operation, or cannot be reached. */
class StoreFailed extends Error {
  name = "StoreFailed";
}

/**
 * Return the store for graphs, which extends the class of the project's library.
 *
 * @param {import("./libraries.mjs").Library} library
 * @param {import("./connection.mjs").Connection} connection
 * @param {SemanticIndex | null} index
 */
export function makeStore(library, connection, index) {
  class HostStore extends library.checkpoint.BaseStore {
    async batch(operations) {
      const run = current();
      if (run === undefined) {
        throw new StoreFailed("the store can only be used while a graph runs");
      }
      if (run.isOver) {
        throw new StoreFailed("the run is over");
      }
      const described = operations.map(describe);
      await index?.addVectors(described);
      const overlay = run.replay?.store;
      const ops = overlay?.reads(described) ?? described; // a replay keeps its writes
      const document = (number) => dumps({ ask: number, op: "store", ops });
      const [answer] = ops.length ? await connection.ask(frames.ASK, run.id, document) : ["[]"];
      let results = parseDocument(answer);
      if (!isArray(results)) {
        throw new StoreFailed(results.error);
      }
      results = overlay?.answers(described, results) ?? results;
      return results.map((result, position) => resultOf(described[position], result));
    }
  }
  return new HostStore();
}

/**
 * Replace the batching of the library's store, which each run has around this one. It looks for operations in a loop of
 * timers for as long as the run lasts, and it neither lists namespaces nor passes on the fields to index.
 */
export function replaceBatching({ AsyncBatchedStore: { prototype }, validateNamespace }) {
  /** @type {Record<string, any> & ThisType<any>} */
  const methods = {
    start() {
      this.running = true;
    },
    async stop() {
      this.running = false;
    },
    async batch(operations) {
      return await this.store.batch(operations);
    },
    async put(namespace, key, value, index) {
      validateNamespace(namespace);
      return await this.enqueueOperation({ namespace, key, value, index });
    },
    enqueueOperation(operation) {
      return new Promise((resolve, reject) => {
        if (this.queue.size === 0) {
          setImmediate(() => flush(this));
        }
        this.queue.set(this.nextKey++, { operation, resolve, reject });
      });
    },
  };
  Object.assign(prototype, methods);
}

/** Send the operations of one turn of the loop as one batch. */
async function flush(batched) {
  const waiting = [...batched.queue.values()];
  batched.queue.clear();
  try {
    const results = await batched.store.batch(waiting.map(({ operation }) => operation));
    waiting.forEach(({ resolve }, position) => resolve(results[position]));
  } catch (error) {
    waiting.forEach(({ reject }) => reject(error));
  }
}

/** Return the document of an operation, which its keys tell apart. */
function describe(operation) {
  if (hasOwn(operation, "value")) {
    const { namespace, key, value, index } = operation;
    return { op: "put", namespace, key, value: value ?? null, ttl: null, index: index ?? null };
  }
  if (hasOwn(operation, "namespacePrefix")) {
    const { namespacePrefix: namespace, filter, limit = 10, offset = 0, query } = operation;
    return {
      op: "search", namespace, filter: filter ? filterOf(filter) : null, limit, offset, refresh: true,
      query: query ?? null, near: null,
    };
  }
  if (hasOwn(operation, "key")) {
    return { op: "get", namespace: operation.namespace, key: operation.key, refresh: true };
  }
  const { matchConditions, maxDepth, limit = 100, offset = 0 } = operation;
  const matches = (matchConditions ?? []).map(({ matchType, path }) => [matchType, path]);
  return { op: "namespaces", matches, max_depth: maxDepth ?? null, limit, offset };
}

function filterOf(filter) {
  return Object.fromEntries(Object.entries(filter).filter(([, value]) => value !== undefined));
}

function resultOf({ op }, answer) {
  switch (op) {
    case "get":
      return answer === null ? null : itemOf(answer);
    case "search":
      return answer.map((item) => ({ ...itemOf(item), ...(item.score == null ? {} : { score: item.score }) }));
    case "namespaces":
      return answer;
    default:
      return undefined;
  }
}

function itemOf({ namespace, key, value, created_at: created, updated_at: updated }) {
  return { namespace, key, value, createdAt: new Date(created), updatedAt: new Date(updated) };
}

/**
 * Adds vectors to described store operations: `vectors` to puts, `near` to searches with a query.
 *
 * A put also gets `indexed_by`, the digest of the index configuration. Items with another digest are indexed again.
 */
class SemanticIndex {
  #embed;
  #dims;
  #fields;
  #digest;

  /**
   * @param {{documents: (texts: string[]) => Promise<number[][]>, query: (text: string) => Promise<number[]>}} embed
   * @param {any} config
   */
  constructor(embed, config) {
    this.#embed = embed;
    this.#dims = config.dims;
    this.#fields = config.fields?.length ? config.fields : WHOLE;
    this.#digest = digest(config);
  }

  /** Add vectors to the operations. Rejects with the errors of the project's embeddings. */
  async addVectors(operations) {
    const texts = this.#texts(operations);
    if (texts.length > MAX_TEXTS) {
      throw new RangeError(`${texts.length} texts to embed at once: the limit is ${MAX_TEXTS}`);
    }
    const vectors = texts.length ? await this.#embed.documents(texts.map(({ text }) => text)) : [];
    for (const operation of operations.filter(({ op }) => op === "put")) {
      Object.assign(operation, { vectors: [], indexed_by: this.#digest });
    }
    texts.forEach(({ operation, path }, position) => {
      operation.vectors.push([path, this.#checked(vectors[position])]);
    });
    for (const operation of operations.filter(({ query }) => query)) {
      operation.near = this.#checked(await this.#embed.query(operation.query));
    }
  }

  #texts(operations) {
    return operations
      .filter(({ op, value, index }) => op === "put" && value !== null && index !== false)
      .flatMap((operation) =>
        (operation.index ?? this.#fields).flatMap((path) =>
          textsAt(operation.value, path).map((text) => ({ operation, path, text })),
        ),
      );
  }

  #checked(vector) {
    const numbers = Array.from(vector ?? [], Number);
    if (numbers.length !== this.#dims) {
      throw new RangeError(`an embedding of ${numbers.length} dimensions: store.index.dims says ${this.#dims}`);
    }
    if (!numbers.every(Number.isFinite)) {
      throw new RangeError("an embedding with a number that is not finite");
    }
    return numbers;
  }
}

/** Return the texts of a value at a path such as `a.b[0].c` or `items[*].text`, as LangGraph for Python finds them. */
function textsAt(value, path) {
  if (!path || path === "$") {
    return [dumps(value)];
  }
  const tokens = path.replaceAll("[", ".[").split(".").filter(Boolean);
  return found(value, tokens).flatMap((item) =>
    typeof item === "string" ? [item] : ["number", "boolean"].includes(typeof item) ? [String(item)]
      : item === null ? [] : [dumps(item)],
  );
}

/** @param {any} value @param {string[]} tokens */
function found(value, tokens) {
  const [token, ...rest] = tokens;
  if (token === undefined) {
    return [value];
  }
  if (typeof value !== "object" || value === null) {
    return [];
  }
  if (token === "[*]" || token === "*") {
    return Object.values(value).flatMap((item) => found(item, rest));
  }
  const [, index] = /^\[(-?\d+)\]$/.exec(token) ?? [];
  const item = index === undefined ? (hasOwn(value, token) ? value[token] : undefined) : value.at?.(Number(index));
  return item === undefined ? [] : found(item, rest);
}

/** Return the digest of an index configuration, as Python's `json.dumps` with sorted keys gives it. */
function digest(config) {
  return createHash("sha256").update(pythonJson(config)).digest("hex").slice(0, 16);
}

function pythonJson(value) {
  if (isArray(value)) {
    return `[${value.map(pythonJson).join(", ")}]`;
  }
  if (typeof value === "object" && value !== null) {
    const names = Object.keys(value).sort();
    return `{${names.map((name) => `${pythonJson(name)}: ${pythonJson(value[name])}`).join(", ")}}`;
  }
  return JSON.stringify(value).replace(/[\u0080-\uffff]/g, (character) => {
    return `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}

/**
 * Return the index of a project's configuration. Throws LoadFailed.
 *
 * @param {any} config
 */
export async function loadIndex(config) {
  const embeddings = await loadObject("store.index.embed", config.embed);
  if (typeof embeddings === "function") {
    const documents = async (texts) => await embeddings(texts);
    return new SemanticIndex({ documents, query: async (text) => (await documents([text]))[0] }, config);
  }
  if (typeof embeddings?.embedDocuments !== "function" || typeof embeddings.embedQuery !== "function") {
    throw new LoadFailed(`store.index.embed: ${config.embed} has no embedDocuments and embedQuery`);
  }
  return new SemanticIndex(
    { documents: (texts) => embeddings.embedDocuments(texts), query: (text) => embeddings.embedQuery(text) },
    config,
  );
}

/** Answer a query for the vectors of store operations, for callers outside of graphs. */
export async function answerEmbed(index, operations) {
  if (index === null) {
    throw new StoreFailed("this project's store has no index");
  }
  await index.addVectors(operations);
  return operations.map(({ vectors, indexed_by: by, near }) => {
    return { vectors: vectors ?? null, indexed_by: by ?? null, near: near ?? null };
  });
}

