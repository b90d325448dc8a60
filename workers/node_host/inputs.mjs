/** Inputs of LangGraph from the documents of runs and queries: config, metadata and command. */

import { CHECKPOINT_KEYS } from "./checkpoints/run_checkpoints.mjs";

const { isArray } = Array;
const INTERRUPT_ID = /^[0-9a-f]{32}$/;
export const AUTH_USER = "langgraph_auth_user"; // key in `configurable`

// Variables of a deployment that turn on traces, as LangChain reads them.
const TRACING = ["LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2", "LANGSMITH_TRACING", "LANGCHAIN_TRACING"];

/** A strict resume does not match the interrupts that wait for an answer. */
export class UnknownInterruptError extends Error {
  name = "UnknownInterruptError";
}

/** The graph lacks the node that waits for an answer. */
export class MissingNodeError extends UnknownInterruptError {
  name = "MissingNodeError";

  constructor() {
    super("The question is of a node that this revision of the graph does not have");
  }
}

/** Return the `configurable` in the document of a run or query. */
export function configurableOf(document) {
  return document.config?.configurable ?? {};
}

/** Return the context of a run; undefined if it is empty. */
export function contextOf(spec) {
  return Object.keys(spec.context ?? {}).length ? spec.context : undefined;
}

/** Return the metadata of a run for its messages, tasks, events and checkpoints. */
export function runMetadata(spec, langgraphVersion) {
  return {
    ...spec.config?.metadata,
    ...spec.metadata,
    run_id: String(spec.run_id),
    thread_id: String(spec.thread_id),
    graph_id: spec.graph_id,
    assistant_id: String(spec.assistant_id),
    run_attempt: spec.attempt ?? 1,
    langgraph_version: langgraphVersion,
  };
}

/** Return the config that executes a run. `metadata` is the run's (`runMetadata`). */
export function runConfig(spec, metadata) {
  const requested = spec.config;
  const configurable = { ...configurableOf(spec), thread_id: String(spec.thread_id) };
  if (spec.resume_from_checkpoint) {
    // an earlier attempt has already continued from that checkpoint
    CHECKPOINT_KEYS.forEach((name) => delete configurable[name]);
  }
  const options = {
    tags: [...(requested?.tags ?? [])],
    metadata: { ...requested?.metadata, ...metadata },
    configurable,
    runId: spec.run_id,
    recursionLimit: requested?.recursion_limit ?? undefined,
    maxConcurrency: requested?.max_concurrency ?? undefined,
    runName: typeof requested?.run_name === "string" ? requested.run_name : undefined,
  };
  return defined(options);
}

/** Return the config that addresses a query's thread, or one of its checkpoints. */
export function queryConfig(document, checkpoint) {
  const configurable = { ...configurableOf(document) };
  CHECKPOINT_KEYS.forEach((name) => delete configurable[name]);
  for (const name of CHECKPOINT_KEYS) {
    if (checkpoint?.[name]) {
      configurable[name] = checkpoint[name];
    }
  }
  return { configurable: { ...configurable, thread_id: String(document.thread_id) } };
}

/**
 * Return LangGraph's Command. An empty command gives null, which continues from the newest checkpoint.
 *
 * @param {{update?: any, resume?: any, goto?: any}} command
 * @param {any} langgraph the library of the graph
 */
export function commandOf(command, langgraph) {
  const { update, resume, goto } = command;
  if ([update, resume, goto].every((part) => part === undefined || part === null)) {
    return null;
  }
  const targets = isArray(goto) ? goto : goto ? [goto] : [];
  const fields = {
    update: update ?? undefined,
    resume: resume ?? undefined,
    goto: targets.map((target) =>
      typeof target === "object" ? new langgraph.Send(target.node, target.input ?? null) : target,
    ),
  };
  return new langgraph.Command(defined(fields));
}

/** Whether a resume answers interrupts by their ids. */
export function isResumeMap(resume) {
  const isObject = typeof resume === "object" && resume !== null && !isArray(resume);
  return isObject && Object.keys(resume).every((name) => INTERRUPT_ID.test(name));
}

/** Throw UnknownInterruptError unless the resume answers waiting interrupts or continues from a breakpoint. */
export function checkResume(resume, record) {
  const pending = record.tasks.flatMap((task) => task.interrupts.map((interrupt) => interrupt.id));
  if (isResumeMap(resume)) {
    const names = Object.keys(resume);
    if (!names.length) {
      throw new UnknownInterruptError("The resume map names no interrupt");
    }
    const unknown = names.filter((name) => !pending.includes(name)).sort();
    if (unknown.length) {
      throw new UnknownInterruptError(`Unknown or already answered interrupt: ${unknown.join(", ")}`);
    }
  } else if (pending.length > 1) {
    const ids = [...pending].sort().join(", ");
    throw new UnknownInterruptError(`Several interrupts wait: the one that is meant must be named: ${ids}`);
  } else if (!record.next.length) {
    throw new UnknownInterruptError("Nothing waits for an answer");
  }
}

/**
 * Return the tracer of a run whose caller names a project or an example of LangSmith. Without one, or without tracing, the
 * deployment's variables apply.
 *
 * @param {{project_name?: string, example_id?: string} | null | undefined} requested
 * @param {any} LangChainTracer
 */
export function tracerOf(requested, LangChainTracer) {
  const fields = { projectName: requested?.project_name || undefined, exampleId: requested?.example_id || undefined };
  const isEnabled = TRACING.some((name) => process.env[name] === "true");
  return isEnabled && Object.values(fields).some(Boolean) ? new LangChainTracer(defined(fields)) : undefined;
}

/** Return the options without those that are undefined, which would replace what a graph was bound with. */
export function defined(options) {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}
