/**
 * The recording of a past run: its tool calls and model calls, taken from its checkpoints.
 *
 * `workers/graph_host/replays/recordings.py` documents the recording. Values of any type are texts of the serializer.
 */

import { isMessage, MESSAGE, typeOf } from "../messages.mjs";
import { stateAt, subgraphAt } from "../outcome.mjs";
import { graphAt, promptKey } from "./replay.mjs";

const { isArray } = Array;
const BRANCH = "branch:to:";
const RETURN = "__return__"; // of tasks of the functional API
const INTERRUPT = "__interrupt__";
const EDITED = "hitl_edited_tool_calls"; // in LangChain: the calls that a reviewer has replaced, by id
const DELTAS = "counters_since_delta_snapshot"; // in the metadata of checkpoints with channels that are stored as their changes
const OVERWRITE = "__overwrite__";
const REMOVE_ALL = "__remove_all__";
const TYPES = { user: "human", assistant: "ai" };
const LOST = "The result of this call was lost, because another call asked a question.";
const MAX_DEPTH = 4; // of messages within a written value

/**
 * Return the recording of a run. `checkpointId` names the root checkpoint that the run began from, or is null.
 *
 * @param {any} saver
 * @param {import("../checkpoints/serializer.mjs").Serializer} serializer
 * @param {any} graph
 * @param {{threadId: string, runId: string, checkpointId: string | null}} place
 */
export async function recording(saver, serializer, graph, { threadId, runId, checkpointId }) {
  const ofRun = new Map();
  const address = { configurable: { thread_id: threadId } };
  for await (const item of saver.list(address, { filter: { run_id: runId } })) {
    const ns = item.config.configurable.checkpoint_ns ?? "";
    ofRun.set(ns, [item, ...(ofRun.get(ns) ?? [])]);
  }
  if (checkpointId && !ofRun.has("")) {
    ofRun.set("", []);
  }
  const reader = new Reader(serializer, graph);
  // Agents that began later may have the messages of earlier ones in their input.
  const isEarlier = (a, b) => firstId(ofRun, a) < firstId(ofRun, b);
  const namespaces = [...ofRun.keys()].sort((a, b) => depthOf(b) - depthOf(a) || (isEarlier(a, b) ? -1 : 1));
  for (const ns of namespaces) {
    const items = ofRun.get(ns);
    const start = items.length ? items[0].parentConfig?.configurable?.checkpoint_id : checkpointId;
    if (start) {
      // A resumed run continues the tasks of a checkpoint of an earlier run.
      const conf = { thread_id: threadId, checkpoint_ns: ns, checkpoint_id: start };
      const before = await saver.getTuple({ configurable: conf });
      if (before !== undefined) {
        await reader.beginFrom(ns, await whole(saver, before));
      }
    }
    await reader.read(ns, await Promise.all(items.map((item) => whole(saver, item))));
  }
  return reader.document();
}

/** Return a checkpoint with the messages of its channels that are stored as their changes. */
async function whole(saver, item) {
  if (item.metadata?.[DELTAS] === undefined) {
    return item;
  }
  const { channel_values: values, channel_versions: versions } = item.checkpoint;
  const channels = Object.keys(versions).filter((channel) => !Object.hasOwn(values, channel) && isState(channel));
  const histories = await saver.getDeltaChannelHistory({ config: item.config, channels });
  const rebuilt = channels.map((channel) => [channel, rebuiltFrom(histories[channel])]);
  const checkpoint = { ...item.checkpoint, channel_values: { ...values, ...Object.fromEntries(rebuilt) } };
  return { ...item, checkpoint };
}

/** Return the messages of a channel from its last stored value and the writes since. */
function rebuiltFrom({ seed, writes }) {
  let messages = [...messagesIn(seed)];
  for (const [, , value] of writes) {
    messages = isOverwrite(value) ? [] : messages;
    for (const written of [isOverwrite(value) ? value[OVERWRITE] : value].flat()) {
      messages = withMessage(messages, written);
    }
  }
  return messages;
}

/** Return messages with a written one: appended, in place of the one with its id, or as removal of that one. */
function withMessage(messages, written) {
  const message = isMessage(written) ? written : coerced(written);
  if (message === null) {
    return messages;
  }
  if (message.id === REMOVE_ALL) {
    return [];
  }
  const position = message.id ? messages.findIndex(({ id }) => id === message.id) : -1;
  if (typeOf(message) === "remove") {
    return messages.filter((_, n) => n !== position);
  }
  return position < 0 ? [...messages, message] : messages.with(position, message);
}

/** Return what a prompt shows of a message in a caller's input; null for other values. */
function coerced(written) {
  const type = TYPES[written?.role] ?? written?.role ?? written?.type;
  return typeof type === "string" && "content" in written ? { ...written, type, [MESSAGE]: true } : null;
}

function isOverwrite(value) {
  return typeof value === "object" && value !== null && OVERWRITE in value;
}

function firstId(ofRun, ns) {
  return ofRun.get(ns)[0]?.config.configurable.checkpoint_id ?? "";
}

function depthOf(ns) {
  return ns ? ns.split("|").length : 0;
}

/** Collects the calls of a run, from the innermost namespace to the root's. */
class Reader {
  #serializer;
  #graph;
  #calls = new Map(); // by call id: the namespace and the tool call, in order
  #results = new Map(); // by call id
  #answeredIn = new Map(); // call id → namespaces with its result
  #edited = new Map(); // call id → the call of a reviewer
  #interrupts = new Map(); // by namespace
  #models = [];
  #seen = new Set(); // messages so far

  constructor(serializer, graph) {
    this.#serializer = serializer;
    this.#graph = graph;
  }

  async beginFrom(ns, before) {
    for (const message of messagesIn(before.checkpoint.channel_values)) {
      this.#learnCalls(ns, message);
      this.#seen.add(identityOf(message));
    }
    await this.#readWrites(ns, before, { isOwn: false });
  }

  async read(ns, items) {
    for (const item of items) {
      await this.#readWrites(ns, item, { isOwn: true });
    }
    for (const [channel, value] of Object.entries(items.at(-1)?.checkpoint.channel_values ?? {})) {
      if (!channel.startsWith("__")) {
        this.#readMessages(ns, [], [...messagesIn(value)]);
      }
    }
  }

  document() {
    const tools = [...this.#calls]
      .filter(([id]) => this.#results.has(id))
      .map(([id, { ns, call }]) => {
        const { content, status, artifact, command } = this.#results.get(id);
        return { ...described(ns, { ...call, ...this.#edited.get(id) }), content, status, artifact, command };
      });
    return { tools: [...tools, ...this.#interrupted()], models: this.#models };
  }

  /**
   * Return the calls without a result at which a tool may have asked its question.
   *
   * A task that executes several calls loses the results of the others when one of them asks. Each of them may ask.
   */
  #interrupted() {
    return [...this.#interrupts].flatMap(([ns, values]) => {
      const calls = [...this.#calls].filter(([id, call]) => call.ns === ns && !this.#results.has(id));
      return calls.map(([, { call }], position) => ({
        ...described(ns, call),
        ...(position < values.length
          ? { interrupt: this.#serializer.dumps(values[position], "recording") }
          : { content: LOST, status: "error" }),
      }));
    });
  }

  /** A task that asks a question ends its run, so its other writes on an own checkpoint are those of a later run. */
  async #readWrites(ns, item, { isOwn }) {
    const values = item.checkpoint.channel_values;
    const tasks = Map.groupBy(item.pendingWrites ?? [], ([task]) => task);
    for (const group of tasks.values()) {
      const writes = group.map(([, channel, value]) => [channel, value]);
      const asked = writes.filter(([channel]) => channel === INTERRUPT).flatMap(([, value]) => value);
      if (asked.length && (await this.#isOfToolNode(ns, item, group[0][0]))) {
        const values = asked.map(({ value }) => value);
        this.#interrupts.set(ns, [...(this.#interrupts.get(ns) ?? []), ...values]);
      }
      if (isOwn && asked.length) {
        continue;
      }
      for (const [channel, value] of writes) {
        if (channel === EDITED && typeof value === "object" && value !== null) {
          Object.entries(value).forEach(([id, call]) => this.#edited.set(id, call));
        }
        if (isState(channel) || channel === RETURN) {
          this.#readMessages(ns, messagesIn(values[channel]), [...messagesIn(value)]);
        }
      }
      await this.#readCommands(ns, values, writes);
    }
  }

  /** Whether a task on a checkpoint is one of LangGraph's node of tools. */
  async #isOfToolNode(ns, item, taskId) {
    const graph = ns ? await subgraphAt(this.#graph, ns) : this.#graph;
    if (!graph?.builder) {
      return false;
    }
    const { tasks } = await stateAt(this.#graph, item.config);
    const task = tasks.find(({ id }) => id === taskId);
    return isToolNode(graph.builder.nodes[task?.name]);
  }

  /** Read the messages of one write. `before` are those that its channel has already. */
  #readMessages(ns, before, messages) {
    const prompt = [...before];
    for (const message of messages) {
      const identity = identityOf(message);
      if (!this.#seen.has(identity)) {
        this.#seen.add(identity);
        if (typeOf(message) === "ai") {
          this.#learnCalls(ns, message);
          const response = this.#serializer.dumps(message, "recording");
          this.#models.push({ messages: promptKey(prompt), response });
        } else if (typeOf(message) === "tool") {
          this.#learnResult(message);
        }
      }
      if (typeOf(message) === "tool") {
        const id = message.tool_call_id;
        this.#answeredIn.set(id, (this.#answeredIn.get(id) ?? new Set()).add(ns));
      }
      prompt.push(message);
    }
  }

  #learnCalls(ns, message) {
    for (const call of message.tool_calls ?? []) {
      if (call.id && !this.#calls.has(call.id)) {
        this.#calls.set(call.id, { ns, call });
      }
    }
  }

  #learnResult({ tool_call_id: id, content, status, artifact }) {
    const stored = artifact == null ? {} : { artifact: this.#serializer.dumps(artifact, "recording") };
    this.#results.set(id, { content, status: status ?? "success", ...stored });
  }

  /** Add the commands that tools may have returned to the results of their calls. `values` are the state before. */
  async #readCommands(ns, values, writes) {
    for (const segment of segmentsOf(writes)) {
      const messages = Object.values(segment).flatMap((value) => [...messagesIn(value)]);
      const ids = messages
        .filter((message) => typeOf(message) === "tool")
        .map(({ tool_call_id: id }) => id)
        .filter((id) => this.#calls.has(id) && this.#isAnsweredBy(ns, id));
      const id = ids.at(-1);
      const result = this.#results.get(id);
      if (result === undefined || result.command !== undefined) {
        continue;
      }
      const calledIn = this.#calls.get(id).ns;
      const isForParent = depthOf(calledIn) > depthOf(ns);
      const goto = await this.#targets(ns, isForParent ? calledIn : null, writes);
      const holdsCalls = messages.some((message) => message.tool_calls?.length);
      const isOwn = ids.length === 1 && !holdsCalls && (Object.keys(segment).length > 1 || goto.length > 0);
      if (isForParent || isOwn) {
        const entries = Object.entries(segment).map(([channel, value]) => [channel, newOf(value, values[channel])]);
        const command = { update: Object.fromEntries(entries), goto, is_for_parent: isForParent };
        result.command = this.#serializer.dumps(command, "recording");
      }
    }
  }

  /** Whether a graph is the innermost one that got the result of a call, of those around the call. */
  #isAnsweredBy(ns, id) {
    const calledIn = this.#calls.get(id).ns;
    const around = [...(this.#answeredIn.get(id) ?? [])].filter((own) => !own || `${calledIn}|`.startsWith(`${own}|`));
    return around.length > 0 && around.reduce((a, b) => (depthOf(b) > depthOf(a) ? b : a)) === ns;
  }

  /** Return the nodes that a command of a tool went to: those that no edge of its node leads to. */
  async #targets(ns, fromNs, writes) {
    const graph = ns ? await subgraphAt(this.#graph, ns) : this.#graph;
    const builder = graph?.builder;
    if (builder === undefined) {
      return [];
    }
    const nodes = new Set(
      fromNs === null
        ? Object.keys(builder.nodes).filter((name) => isToolNode(builder.nodes[name]))
        : [fromNs.split("|").at(-1).split(":")[0]],
    );
    const branches = [...nodes].flatMap((node) => Object.values(builder.branches[node] ?? {}));
    if (branches.some(({ ends }) => ends === undefined)) {
      return []; // they may lead anywhere
    }
    const known = new Set(branches.flatMap(({ ends }) => Object.values(ends)));
    for (const [start, end] of builder.edges) {
      if (nodes.has(start)) {
        known.add(end);
      }
    }
    return writes
      .filter(([channel]) => channel.startsWith(BRANCH))
      .map(([channel]) => channel.slice(BRANCH.length))
      .filter((target) => !known.has(target));
  }
}

function described(ns, { id, name, args }) {
  return { id, name, args, at: graphAt(ns) };
}

function isToolNode(node) {
  return node?.runnable?.constructor?.name === "ToolNode";
}

function isState(channel) {
  return !channel.startsWith("__") && !channel.startsWith(BRANCH);
}

/** Return what two copies of a message share: subgraphs write their messages to the parent's state, too. */
function identityOf(message) {
  return typeOf(message) === "tool" ? `result ${message.tool_call_id}` : (message.id ?? message);
}

/** Return the updates of a task, each with the messages of one write, as recordings.py describes. */
function segmentsOf(writes) {
  const own = writes.filter(([channel]) => isState(channel));
  const answers = own.flatMap(([, value], position) =>
    [...messagesIn(value)].some((message) => typeOf(message) === "tool") ? [position] : [],
  );
  if (answers.length < 2) {
    return [Object.fromEntries(own)];
  }
  const isLeading = answers.at(-1) === own.length - 1;
  const starts = isLeading ? [0, ...answers.slice(0, -1).map((position) => position + 1)] : [0, ...answers.slice(1)];
  return starts.map((start, n) => Object.fromEntries(own.slice(start, starts[n + 1] ?? own.length)));
}

/** Return an update without the messages that its channel has already: the replay has others in their place. */
function newOf(value, before) {
  if (!isArray(value)) {
    return value;
  }
  const known = new Set([...messagesIn(before)].map(({ id }) => id));
  return value.filter((item) => !(isMessage(item) && known.has(item.id)));
}

/** Yield the messages in a value of a channel. */
function* messagesIn(value, depth = 0) {
  if (isMessage(value)) {
    yield value;
  } else if (typeof value === "object" && value !== null && depth < MAX_DEPTH) {
    const isPlain = isArray(value) || Object.getPrototypeOf(value) === Object.prototype;
    for (const item of isPlain ? Object.values(value) : []) {
      yield* messagesIn(item, depth + 1);
    }
  }
}
