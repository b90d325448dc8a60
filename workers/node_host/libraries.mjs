/**
 * The project's copies of LangGraph and LangChain. The host has no dependencies and takes these from the project.
 *
 * A package is found from the file of a graph. With pnpm, LangGraph is not at the top of `node_modules`, but beside the
 * package that depends on it.
 *
 * @typedef {object} Library
 * @property {any} langgraph the exports of LangGraph
 * @property {any} checkpoint the exports of LangGraph's package of checkpoints and stores
 * @property {any} messages the exports of the messages of LangChain's core
 * @property {any} documents the exports of its documents
 * @property {any} LangChainTracer the class of core's callback handler that sends traces to LangSmith
 * @property {() => Promise<void>} awaitAllCallbacks waits for callbacks that run in the background
 * @property {any} context the exports of core's context variables
 * @property {string} core the folder of LangChain's core
 * @property {Record<string, string>} versions
 */

import { existsSync, readFileSync, realpathSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const { parse } = JSON;

const LANGGRAPH = "@langchain/langgraph";
const CORE = "@langchain/core";
const CHECKPOINT = "@langchain/langgraph-checkpoint";
const DEPENDENTS = ["langchain", "deepagents"];
const OLDEST = [1, 0];

/** A library cannot be used. The message is for the person who deploys. */
export class LibraryFailed extends Error {
  name = "LibraryFailed";
}

/**
 * Return the folder of a package as a file of `folder` finds it; undefined if there is none.
 *
 * @param {string} name
 * @param {string} folder
 */
function packageFolder(name, folder) {
  for (let at = folder; ; at = path.dirname(at)) {
    const found = path.join(at, "node_modules", name);
    if (existsSync(path.join(found, "package.json"))) {
      return realpathSync(found);
    }
    if (at === path.dirname(at)) {
      return undefined;
    }
  }
}

/**
 * Return the folder of the LangGraph that a file uses. Throws LibraryFailed.
 *
 * @param {string} file
 */
export function langgraphFolder(file) {
  const folder = path.dirname(realpathSync(file));
  for (const dependent of [undefined, ...DEPENDENTS]) {
    const from = dependent === undefined ? folder : packageFolder(dependent, folder);
    const found = from && packageFolder(LANGGRAPH, from);
    if (found) {
      return found;
    }
  }
  throw new LibraryFailed(`${LANGGRAPH} cannot be found from '${shown(file)}': add it to the dependencies`);
}

/**
 * Import the libraries of the LangGraph in a folder. Throws LibraryFailed.
 *
 * @param {string} folder
 * @returns {Promise<Library>}
 */
export async function load(folder) {
  const version = manifest(folder).version;
  const core = packageFolder(CORE, folder);
  const checkpoint = packageFolder(CHECKPOINT, folder);
  const [major, minor] = version.split(".").map(Number);
  if (major < OLDEST[0] || (major === OLDEST[0] && minor < OLDEST[1])) {
    throw new LibraryFailed(
      `${LANGGRAPH} 1.0 or newer is needed: the project has ${version}: update it and ${CORE}`,
    );
  }
  if (!core || !checkpoint) {
    const missing = core ? CHECKPOINT : CORE;
    throw new LibraryFailed(`${missing} cannot be found from '${shown(folder)}': add it to the dependencies`);
  }
  const versions = {
    node: process.versions.node,
    langgraph: version,
    core: manifest(core).version,
    checkpoint: manifest(checkpoint).version,
  };
  const [langgraph, checkpoints, messages, documents, tracers, promises, context] = await Promise.all([
    importEntry(folder, "."),
    importEntry(checkpoint, "."),
    importEntry(core, "./messages"),
    importEntry(core, "./documents"),
    importEntry(core, "./tracers/tracer_langchain"),
    importEntry(core, "./callbacks/promises"),
    importEntry(core, "./context"),
  ]);
  const { LangChainTracer } = tracers;
  const { awaitAllCallbacks } = promises;
  return {
    langgraph, checkpoint: checkpoints, messages, documents, LangChainTracer, awaitAllCallbacks, context, core, versions,
  };
}

/**
 * Return the LangGraph that a graph was made with: the ES modules, or the CommonJS modules of the same folder.
 *
 * @param {object} graph
 * @param {Library} library
 * @param {string} folder
 */
export function langgraphOf(graph, library, folder) {
  return graph instanceof baseClass(library.langgraph)
    ? library.langgraph
    : createRequire(path.join(folder, "package.json"))(LANGGRAPH);
}

/** Return LangGraph's class of all graphs, which also a compiled functional graph is an instance of. */
function baseClass(langgraph) {
  let found = langgraph.CompiledStateGraph;
  while (Object.getPrototypeOf(found).name?.match(/^(CompiledGraph|Pregel)$/)) {
    found = Object.getPrototypeOf(found);
  }
  return found;
}

function manifest(folder) {
  return parse(readFileSync(path.join(folder, "package.json"), "utf8"));
}

/** Import an entry of the package in a folder, by the `import` condition. */
export async function importEntry(folder, entry) {
  const { exports } = manifest(folder);
  let target = exports[entry];
  while (typeof target === "object") {
    target = target.import ?? target.default;
  }
  return await import(pathToFileURL(path.join(folder, target)).href);
}

/** Return a path as the project's author knows it. */
function shown(file) {
  return `./${path.relative(process.cwd(), file)}`;
}
