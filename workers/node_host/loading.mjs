/**
 * Loading of a revision's graphs from their entries (`path:export`).
 *
 * An export may be a compiled graph, a builder, a promise of either, the wrapper that `createAgent` returns, or a function
 * that returns one of these for each use. An entry that cannot be loaded throws LoadFailed with a text for the person who
 * deploys.
 */

import { existsSync, realpathSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { LibraryFailed, langgraphFolder, langgraphOf, load as loadLibrary } from "./libraries.mjs";
import { shortStack } from "./output.mjs";
import { textOf } from "./serialization.mjs";

const { setInterval, clearInterval } = globalThis;
const UNNAMED = "LangGraph"; // the name of a graph that was compiled without a name
const SLOW_MS = 10_000;
// LangGraph and LangChain read these members of objects that need not have them.
const OPTIONS = [
  "callbacks", "checkpointer", "configurable", "context", "control", "durability", "interruptAfter", "interruptBefore",
  "maxConcurrency", "metadata", "outputKeys", "recursionLimit", "runId", "runName", "signal", "store", "streamMode",
  "subgraphs", "tags", "timeout", "writer",
];
// Purposes of opening a graph, as the JavaScript server of LangGraph names them for functions that return a graph.
export const RUN = "threads.create_run";
export const READ = "assistants.read";
export const READ_STATE = "threads.read";
export const UPDATE_STATE = "threads.update";

/** A graph cannot be loaded. The message is for the person who deploys. */
export class LoadFailed extends Error {
  name = "LoadFailed";
}

/** A graph function returned an object that is not a graph. */
class NotAGraph extends Error {
  name = "NotAGraph";
}

/** One graph of the revision. Either `graph` is set and serves every use, or `factory` returns one for each use. */
export class LoadedGraph {
  /** @type {any} */
  graph = null;
  /** @type {any} */
  factory = null;
  langgraph; // the library of the graph
  #library;
  #folder;
  #prepared;

  constructor({ graphId, location, description, library, folder, saver, store }) {
    this.graphId = graphId;
    this.location = location;
    this.description = description;
    this.langgraph = library.langgraph;
    this.#library = library;
    this.#folder = folder;
    this.#prepared = { checkpointer: saver, store };
  }

  /**
   * Return the graph for one use. Errors of the project's function are not wrapped.
   *
   * @param {object} config of the run or query
   * @param {string} accessContext purpose of the use
   * @param {object} [context] of a run
   */
  async open(config, accessContext, context) {
    if (this.graph !== null) {
      return this.graph;
    }
    const executionRuntime = accessContext === RUN ? { context } : null;
    return this.prepared(await this.factory(config, { accessContext, executionRuntime }));
  }

  /**
   * Return a graph with the platform's saver and store, and with a name. Throws NotAGraph.
   *
   * The result inherits from the project's object, which stays as it is: it may be the subgraph of another graph.
   */
  prepared(value) {
    const graph = compiled(value);
    if (graph === null) {
      throw new NotAGraph(`graph '${this.graphId}': ${textOf(value?.constructor?.name ?? value)} is not a graph`);
    }
    this.langgraph = langgraphOf(graph, this.#library, this.#folder);
    const name = !graph.name || graph.name === UNNAMED ? this.graphId : graph.name;
    return Object.assign(Object.create(graph), this.#prepared, { name });
  }
}

/**
 * Import the libraries that the graphs use. Throws LibraryFailed.
 *
 * @param {Record<string, any>} graphs
 * @returns {Promise<{library: import("./libraries.mjs").Library, folder: string}>}
 */
export async function libraryOf(graphs) {
  let first;
  for (const [graphId, spec] of Object.entries(graphs)) {
    const { file } = entryOf(graphId, spec);
    const folder = langgraphFolder(file);
    first ??= { folder, file };
    if (folder !== first.folder) {
      throw new LibraryFailed(
        `'${relative(first.file)}' and '${relative(file)}' use two copies of @langchain/langgraph:` +
          ` ${relative(first.folder)} and ${relative(folder)}`,
      );
    }
  }
  return { folder: first.folder, library: await loadLibrary(first.folder) };
}

/**
 * Load all entries. Throws LoadFailed for the first that cannot be loaded.
 *
 * @param {Record<string, any>} graphs
 * @param {{library: any, folder: string, saver: any, store: any}} prepared
 * @returns {Promise<Map<string, LoadedGraph>>}
 */
export async function loadAll(graphs, prepared) {
  const entries = new Map();
  for (const [graphId, spec] of Object.entries(graphs)) {
    entries.set(graphId, await loadGraph(graphId, spec, prepared));
  }
  return entries;
}

/**
 * Refuse further members of the prototype of all objects, so that a node cannot change other runs. Throws LoadFailed if
 * the project has already added one that LangGraph would read as an option: `maxConcurrency` would make each run hang.
 */
export function closePrototype() {
  const added = OPTIONS.find((name) => name in Object.prototype);
  if (added !== undefined) {
    throw new LoadFailed(
      `the project adds '${added}' to Object.prototype: LangGraph reads it as an option of each run`,
    );
  }
  Object.preventExtensions(Object.prototype);
}

async function loadGraph(graphId, spec, prepared) {
  const { location, file, name, description } = entryOf(graphId, spec);
  const key = `graph '${graphId}'`;
  const exported = await importExport(key, file, name);
  const entry = new LoadedGraph({ graphId, location, description, ...prepared });
  let value;
  try {
    value = await within(key, exported);
    if (isGraph(value)) {
      entry.graph = entry.prepared(value);
      return entry;
    }
  } catch (error) {
    throw new LoadFailed(`${key}: ${location} does not compile\n${shortStack(error)}`, { cause: error });
  }
  if (typeof value !== "function") {
    throw new LoadFailed(`${key}: '${name}' in ${relative(file)} is no graph: ${typeof value}`);
  }
  entry.factory = value;
  return entry;
}

/** Return the object that `./file.ts:export` names in the configuration entry `key`. Throws LoadFailed. */
export async function loadObject(key, location) {
  const { file, name } = partsOf(key, location);
  return await importExport(key, file, name);
}

/** Whether a value is a compiled graph, a builder, or an agent around a graph. */
function isGraph(value) {
  return compiled(value, { compiles: false }) !== null;
}

function compiled(value, { compiles = true } = {}) {
  if (typeof value !== "object" || value === null) {
    return null;
  }
  if (value.lg_is_pregel === true) {
    return value;
  }
  if (value.graph?.lg_is_pregel === true) {
    return value.graph; // the wrapper of `createAgent`
  }
  if (typeof value.compile === "function" && "nodes" in value) {
    return compiles ? value.compile() : value;
  }
  return null;
}

function entryOf(graphId, spec) {
  const location = typeof spec === "string" ? spec : spec.path;
  const description = typeof spec === "string" ? null : (spec.description ?? null);
  return { location, description, ...partsOf(`graph '${graphId}'`, location) };
}

function partsOf(key, location) {
  const [, place, name] = /** @type {RegExpExecArray} */ (/^(.*?)(?::([^:/\\]*))?$/.exec(String(location)));
  const file = path.resolve(place);
  if (!place || !existsSync(file)) {
    throw new LoadFailed(`${key}: no such file: ${place}`);
  }
  return { file: realpathSync(file), name: name || "default" };
}

async function importExport(key, file, name) {
  let module;
  try {
    module = await within(`${key}: ${relative(file)}`, import(pathToFileURL(file).href));
  } catch (error) {
    throw new LoadFailed(`${key}: ${relative(file)} failed\n${shortStack(error)}${hint(error)}`, { cause: error });
  }
  const exported = name in module ? module : module.default; // the exports of CommonJS are in its default
  if (typeof exported !== "object" || exported === null || !(name in exported)) {
    const names = Object.keys(module).filter((each) => each !== "module.exports" && each !== "__esModule");
    const known = names.length ? `it exports ${names.join(", ")}` : "it exports nothing";
    throw new LoadFailed(`${key}: ${relative(file)} has no '${name}'; ${known}`);
  }
  const value = exported[name];
  // A CommonJS module that was compiled from an ES module has its default export in its default.
  return name === "default" && value?.__esModule ? value.default : value;
}

/** Await a promise of the project, and report what does not end. */
async function within(what, promise) {
  const timer = setInterval(() => {
    process.stderr.write(`${what} is still loading: a top-level await has not ended\n`);
  }, SLOW_MS);
  try {
    return await promise;
  } finally {
    clearInterval(timer);
  }
}

function hint(error) {
  const missing = /Cannot find (?:package|module) '([^'./][^']*)'/.exec(textOf(error?.message));
  return missing ? `\nAdd '${missing[1]}' to the dependencies of package.json.` : "";
}

function relative(file) {
  return `./${path.relative(process.cwd(), file)}`;
}
