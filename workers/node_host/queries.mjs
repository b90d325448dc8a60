/**
 * Queries: graph work other than runs, such as reading a thread's state or history, and updating its state.
 * `workers/graph_host/queries.py` documents the documents.
 *
 * The answer to each op but `update` is one JSON document. An `update` stores nothing itself. Its answer contains the data
 * to store, so that the runner can store it in one transaction.
 */

import { RunCheckpoints, configured, tupleQuestion } from "./checkpoints/run_checkpoints.mjs";
import { Overlay } from "./checkpoints/storage.mjs";
import { storage as currentStorage } from "./current.mjs";
import * as frames from "./frames.mjs";
import { AUTH_USER, commandOf, configurableOf, queryConfig } from "./inputs.mjs";
import { stringify } from "./json.mjs";
import { READ_STATE, UPDATE_STATE } from "./loading.mjs";
import {
  emptyRecord, interruptsByTask, isSnapshot, readState, stateAt, stateRecord, subgraphAt, withPlaces,
} from "./outcome.mjs";
import { recording } from "./replays/recordings.mjs";
import { dumps, errorRecord, withoutNul } from "./serialization.mjs";

const { byteLength } = Buffer;
const MAX_ANSWER_BYTES = 48 * 1024 * 1024; // less than the limit of a frame

/** An update is addressed to a subgraph that does not exist. */
class UnknownSubgraph extends Error {
  name = "InvalidUpdateError";
}

/** One query in progress. */
export class Query {
  #shared;
  #entry;
  #id;
  #document;
  #threadId;
  #storage;
  #checkpoints;

  /**
   * @param {import("./execution.mjs").Shared} shared
   * @param {import("./loading.mjs").LoadedGraph} entry
   * @param {string} id
   * @param {any} document
   */
  constructor(shared, entry, id, document) {
    this.#shared = shared;
    this.#entry = entry;
    this.#id = id;
    this.#document = document;
    this.#threadId = String(document.thread_id);
    this.#storage = new Overlay(shared.connection, id, this.#threadId);
    this.#checkpoints = new RunCheckpoints({
      threadId: this.#threadId,
      storage: this.#storage,
      serializer: shared.serializer,
      metadata: {
        ...configured(configurableOf(document)),
        thread_id: this.#threadId,
        graph_id: entry.graphId,
        langgraph_version: shared.versions.langgraph,
        ...document.metadata,
      },
      shipsAll: true,
    });
  }

  /** Compute and send the answer. Errors become refusals. */
  async run() {
    const current = {
      __proto__: null,
      id: this.#id,
      checkpoints: this.#checkpoints,
      user: configurableOf(this.#document)[AUTH_USER],
    };
    const parts = await currentStorage.run(current, () => this.#answered());
    current.isOver = true;
    this.#checkpoints.close();
    this.#shared.connection.send(frames.ANSWER, this.#id, frames.pack(parts));
  }

  async #answered() {
    try {
      const access = this.#document.op === "update" ? UPDATE_STATE : READ_STATE;
      const parts = await this.#answer(await this.#entry.open(queryConfig(this.#document), access));
      if (parts.reduce((sum, part) => sum + byteLength(part), 0) > MAX_ANSWER_BYTES) {
        const error = { error: "AnswerTooLarge", message: "the answer is too large: ask for less" };
        return [refusal(error, "too_large")];
      }
      return parts;
    } catch (error) {
      return [refusal(errorRecord(error), error?.name === "InvalidUpdateError" ? "invalid" : "failed")];
    }
  }

  async #answer(graph) {
    switch (this.#document.op) {
      case "state":
        return [dumps(await this.#state(graph))];
      case "history":
        return [dumps(await this.#history(graph))];
      case "update":
        return await this.#update(graph);
      case "recording":
        return [dumps(await this.#recording(graph))];
      default:
        return [refusal({ error: "UnknownQuery", message: `this host cannot answer '${this.#document.op}'` })];
    }
  }

  async #state(graph) {
    const { checkpoint, subgraphs, left_by: leftBy } = this.#document;
    if (leftBy) {
      return await this.#stateLeftBy(graph);
    }
    const config = queryConfig(this.#document, checkpoint);
    try {
      const snapshot = await stateAt(graph, config, { isDeep: Boolean(subgraphs) });
      return stateDocument(snapshot, this.#checkpoints, { isDeep: Boolean(subgraphs) });
    } catch (error) {
      if (isUnknownSubgraph(error)) {
        return emptyState(this.#threadId, checkpoint ?? {});
      }
      throw error;
    }
  }

  /** Return the state as a past run left it: its last checkpoint serves as the thread's newest one. */
  async #stateLeftBy(graph) {
    const { checkpoint, left_by: leftBy } = this.#document;
    const { configurable } = queryConfig(this.#document, checkpoint);
    const question = { ...tupleQuestion(configurable), left_by: leftBy };
    this.#checkpoints.newest = await this.#storage.ask(frames.ASK, question, []);
    return stateDocument(await stateAt(graph, queryConfig(this.#document)), this.#checkpoints);
  }

  async #history(graph) {
    const { limit, before, filter, checkpoint_ns: ns, values = true } = this.#document;
    const config = queryConfig(this.#document, { checkpoint_ns: ns });
    const options = {
      limit,
      ...(filter && Object.keys(filter).length ? { filter } : {}),
      ...(before ? { before: { configurable: { checkpoint_id: before } } } : {}),
    };
    const states = [];
    try {
      for await (const snapshot of graph.getStateHistory(config, options)) {
        await withPlaces(graph, config, snapshot);
        states.push(stateDocument(snapshot, this.#checkpoints, { hasValues: values }));
      }
    } catch (error) {
      if (!isUnknownSubgraph(error)) {
        throw error;
      }
    }
    return states;
  }

  async #recording(graph) {
    const { run_id: runId, checkpoint_id: checkpointId } = this.#document;
    const { saver, serializer } = this.#shared;
    return await recording(saver, serializer, graph, { threadId: this.#threadId, runId, checkpointId });
  }

  async #update(graph) {
    const { checkpoint, supersteps } = this.#document;
    const ns = checkpoint?.checkpoint_ns;
    if (!(await hasNamespace(graph, ns))) {
      throw new UnknownSubgraph(`Subgraph ${ns} not found`);
    }
    const { langgraph } = this.#entry;
    const steps = supersteps.map((updates) => ({ updates: updates.map((update) => updateOf(update, langgraph)) }));
    const written = await graph.bulkUpdateState(queryConfig(this.#document, checkpoint), steps);
    const snapshot = await readState(graph, queryConfig(this.#document));
    const answer = {
      checkpoint: {
        thread_id: this.#threadId,
        checkpoint_ns: written.configurable?.checkpoint_ns ?? "",
        checkpoint_id: written.configurable?.checkpoint_id ?? null,
      },
      state: stateRecord(snapshot, this.#checkpoints),
      interrupts: interruptsByTask(snapshot, this.#checkpoints),
      written: this.#storage.written.map(([kind, header, blobs]) => [kind, header, blobs.length]),
    };
    const blobs = this.#storage.written.flatMap(([, , parts]) => parts);
    return [withoutNul(dumps(answer)), dumps(snapshot.values), ...blobs];
  }
}

/** Whether a graph has the subgraph of a checkpoint namespace. */
async function hasNamespace(graph, ns) {
  return !ns || (await subgraphAt(graph, ns)) !== null;
}

/** Return a state in the shape of the API, with the states of the subgraphs that wait in its tasks if `isDeep`. */
function stateDocument(snapshot, run, { isDeep = false, hasValues = true } = {}) {
  const record = stateRecord(snapshot, run);
  if (isDeep) {
    record.tasks.forEach((task, position) => {
      const { state } = snapshot.tasks[position];
      if (isSnapshot(state)) {
        Object.assign(task, { state: stateDocument(state, run, { isDeep }), checkpoint: null });
      }
    });
  }
  return hasValues ? { values: snapshot.values ?? {}, ...record } : record;
}

/** Return an answer that refuses the query. `kind` is invalid, failed or too_large. */
export function refusal(error, kind = "failed") {
  return stringify({ refused: { ...error, kind } });
}

function updateOf({ values, command, as_node: asNode }, langgraph) {
  const update = command ? commandOf(command, langgraph) : (values ?? null);
  return { values: update, ...(asNode ? { asNode } : {}) };
}

/** Whether an older LangGraph has refused to read a namespace of no declared subgraph. Newer ones read its checkpoints. */
function isUnknownSubgraph(error) {
  return error instanceof Error && /^Subgraph .* not found/.test(error.message);
}

/** Return an empty state for an address that has no state. */
function emptyState(threadId, address) {
  const place = address.checkpoint_id ? { checkpoint_ns: "", ...address, thread_id: threadId } : null;
  return { values: {}, ...emptyRecord(place) };
}
