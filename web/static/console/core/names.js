// Names that pages load: assistants by id, titles of threads by id, and the title of the document.

import { deployment } from "./api.js";
import { useEffect, useRef } from "./dom.js";
import { THREAD_TITLE, threadTitle } from "./format.js";
import { useResource } from "./resource.js";

const MOST_ASSISTANTS = 1000;
const MOST_TITLES = 1000;
const LOOK_AGAIN_MS = 15_000;

/** @typedef {{assistant_id: string, name: string, graph_id: string}} Assistant */

/**
 * The assistants of a deployment by id, with their names and graphs only; empty while they load.
 * @param {string} name @returns {Map<string, Assistant>}
 */
export function useAssistants(name) {
  const body = { limit: MOST_ASSISTANTS, select: ["assistant_id", "name", "graph_id"] };
  const { data } = useResource(async (signal) => byId(await deployment(name).call("POST", "/assistants/search", { body, signal })), [name]);
  return data ?? NO_ASSISTANTS;
}

/** @type {Map<string, Assistant>} */
const NO_ASSISTANTS = new Map();

/** @param {Assistant[]} assistants */
const byId = (assistants) => new Map(assistants.map((each) => [each.assistant_id, each]));

/**
 * The titles of threads by id. A thread that is not loaded yet, or that the caller may not read, is missing.
 * @param {string} name of the deployment @param {string[]} ids @returns {Map<string, string>}
 */
export function useTitles(name, ids) {
  const known = useRef(/** @type {Map<string, string>} */ (new Map()));
  const listed = [...new Set(ids)].sort().slice(0, MOST_TITLES);
  const { data } = useResource(async (signal) => {
    if (!listed.length) return [];
    const body = { ids: listed, limit: listed.length, select: ["thread_id"], extract: THREAD_TITLE };
    return deployment(name).call("POST", "/threads/search", { body, signal });
  }, [name, listed.join()], { every: LOOK_AGAIN_MS });
  // A list gets new rows while it is shown: the titles of its other rows must not disappear until the search returns.
  for (const thread of data ?? []) known.current.set(thread.thread_id, threadTitle(thread));
  return known.current;
}

/** Set the title of the document while a component is shown, once the name is known. @param {string | undefined} name */
export function useDocumentTitle(name) {
  useEffect(() => {
    if (name) document.title = `${name} – runyard`;
  }, [name]);
}
