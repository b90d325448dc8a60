/**
 * Descriptions of a revision's graphs, extracted once during the build: drawings and schemas.
 *
 * Schemas of Zod and of `StateSchema` exist at run time. Other states exist as types only, and their schema is an object
 * with the names of the channels. Such a graph, or one with such a subgraph, is `untyped`, and the builder adds the types.
 */

import { importEntry } from "./libraries.mjs";
import { READ } from "./loading.mjs";
import { shortStack } from "./output.mjs";
import { plain, set } from "./serialization.mjs";

const { isArray } = Array;
const { entries } = Object;
const { stringify } = JSON;
const MAX_DEPTH = 10;
const NO_DRAWING = { nodes: [], edges: [] };
const SCHEMAS = ["input_schema", "output_schema", "state_schema", "config_schema", "context_schema"];

/**
 * Describe all graphs. A graph that cannot be described or drawn gets an `error`; runs can still execute it.
 *
 * @param {Map<string, import("./loading.mjs").LoadedGraph>} entries
 * @param {string} folder of LangGraph
 */
export async function describeAll(entries, folder) {
  const described = {};
  for (const [graphId, entry] of entries) {
    set(described, graphId, await describeEntry(entry, folder));
  }
  return described;
}

async function describeEntry(entry, folder) {
  const { graphId, description, location } = entry;
  try {
    const graph = await entry.open({ configurable: { graph_id: graphId } }, READ);
    const { describe, isTyped } = await schemasOf(entry.langgraph, folder);
    const subgraphs = {};
    let untyped = !isTyped(graph);
    for await (const [name, inner] of graph.getSubgraphsAsync(undefined, true)) {
      set(subgraphs, name, describe(inner));
      untyped ||= !isTyped(inner);
    }
    const schemas = { graph_id: graphId, ...describe(graph) };
    return { description, ...(await drawn(location, graph)), schemas, subgraphs, untyped };
  } catch (error) {
    const reason = `${location} gives no graph to describe; a run may succeed, or fail for the same reason`;
    return {
      description,
      drawings: { all: NO_DRAWING },
      schemas: { graph_id: graphId, ...Object.fromEntries(SCHEMAS.map((name) => [name, null])) },
      subgraphs: {},
      error: `${reason}\n${shortStack(error)}`,
    };
  }
}

/** Return drawings by depth: "0" shows no subgraph's inside, "all" shows the inside of every subgraph. */
async function drawn(location, graph) {
  try {
    const everything = drawing(await graph.getGraphAsync({ xray: true }));
    const drawings = { 0: drawing(await graph.getGraphAsync({ xray: false })) };
    for (let depth = 1; depth <= MAX_DEPTH; depth++) {
      drawings[depth] = drawing(await graph.getGraphAsync({ xray: depth }));
      if (stringify(drawings[depth]) === stringify(everything)) {
        break;
      }
    }
    return { drawings: { ...drawings, all: everything } };
  } catch (error) {
    return { drawings: { all: NO_DRAWING }, error: `${location} cannot be drawn\n${shortStack(error)}` };
  }
}

function drawing(graph) {
  const { nodes, edges } = graph.toJSON();
  return { nodes: nodes.map(nodeOf), edges: edges.map(edgeOf) };
}

function nodeOf({ id, metadata }) {
  if (id === "__end__") {
    return { id };
  }
  const known = plain(metadata ?? {});
  return {
    id: String(id),
    type: "runnable",
    data: { name: String(id).split(":").at(-1) }, // the library names some nodes after the class that runs them
    ...(Object.keys(known).length ? { metadata: known } : {}),
  };
}

function edgeOf({ source, target, data, conditional }) {
  return {
    source: String(source),
    target: String(target),
    ...(data === undefined ? {} : { data: plain(data) }),
    ...(conditional ? { conditional } : {}),
  };
}

/** Return functions that describe a graph's states by their JSON Schemas, and that test whether these exist at run time. */
async function schemasOf(langgraph, folder) {
  const library = await importEntry(folder, "./zod/schema");
  const isTyped = (graph) => firstSchema(() => library.getStateTypeSchema(graph)) !== null;
  const describe = (graph) => {
    const { inputChannels: _, outputChannels, streamChannelsAsIs: state, channels = {}, builder } = graph;
    const names = (value) => (isArray(value) ? value : [value].filter((name) => typeof name === "string"));
    const ofNames = (value) => () => channelSchema(names(value), channels, langgraph);
    const inputs = builder?._inputDefinition ? Object.keys(builder._inputDefinition) : state;
    const hasContext = Boolean(builder?._configRuntimeSchema);
    const context = hasContext ? forCallers(firstSchema(() => library.getConfigTypeSchema(graph))) : null;
    return {
      input_schema: forCallers(firstSchema(() => library.getInputTypeSchema(graph), ofNames(inputs))),
      output_schema: firstSchema(() => library.getOutputTypeSchema(graph), ofNames(outputChannels)),
      state_schema: firstSchema(() => library.getStateTypeSchema(graph), ofNames(state)),
      config_schema: hasContext ? context : {},
      context_schema: context,
    };
  };
  return { describe, isTyped };
}

/** Return an object's schema with the names of channels. A channel of messages is marked as such. */
function channelSchema(names, channels, langgraph) {
  const properties = {};
  for (const name of names) {
    const isOfMessages = channels[name]?.operator === langgraph.messagesStateReducer;
    set(properties, name, isOfMessages ? { type: "array", langgraph_type: "messages" } : {});
  }
  return names.length ? { type: "object", properties } : null;
}

/** Return a schema without the requirement of properties that have a default: Zod describes values as nodes get them. */
function forCallers(schema) {
  if (isArray(schema)) {
    return schema.map(forCallers);
  }
  if (schema === null || typeof schema !== "object") {
    return schema;
  }
  const copy = {};
  for (const [name, value] of entries(schema)) {
    set(copy, name, name === "default" ? value : forCallers(value));
  }
  if (isArray(schema.required)) {
    copy.required = schema.required.filter((name) => schema.properties?.[name]?.default === undefined);
  }
  return copy;
}

/** Return the result of the first maker that succeeds and finds a schema. */
function firstSchema(...makers) {
  for (const make of makers) {
    try {
      const schema = make();
      if (schema) {
        return plain(schema);
      }
    } catch {
      continue; // a type that cannot be described
    }
  }
  return null;
}
