/**
 * The graph host's process: load the graphs, report READY, execute the runs that the runner sends.
 *
 * The configuration is JSON in the variable GRAPH_HOST_CONFIG. `workers/graph_host/host.py` documents its keys.
 */

import { Serializer } from "./checkpoints/serializer.mjs";
import { makeSaver } from "./checkpoints/saver.mjs";
import { Connection } from "./connection.mjs";
import { current } from "./current.mjs";
import { openInspector } from "./debugging.mjs";
import { Execution } from "./execution.mjs";
import * as frames from "./frames.mjs";
import { parseDocument, stringify } from "./json.mjs";
import { LibraryFailed } from "./libraries.mjs";
import { LoadFailed, closePrototype, libraryOf, loadAll } from "./loading.mjs";
import { masked } from "./masking.mjs";
import { LOGGER, Limiter, shortStack, userStack } from "./output.mjs";
import { load as loadApps } from "./project/app.mjs";
import { load as loadAuth } from "./project/auth.mjs";
import { Exchanges } from "./project/exchanges.mjs";
import { install as installLoopback } from "./project/loopback.mjs";
import { Query, refusal } from "./queries.mjs";
import { answerScore, loadScorer } from "./replays/scoring.mjs";
import { dumps, errorName, errorRecord, errorText, loads } from "./serialization.mjs";
import { answerEmbed, loadIndex, makeStore, replaceBatching } from "./store.mjs";
import { watchLoop } from "./watch.mjs";

const { setImmediate, setTimeout } = globalThis;

const EXIT_UNUSABLE = 3;
const TRACING_MS = 1000;
const LEVELS = {
  error: "ERROR", warn: "WARNING", info: "INFO", http: "INFO", verbose: "DEBUG", debug: "DEBUG", silly: "DEBUG",
};

/** A node called `process.exit`. */
class ProcessExit extends Error {
  name = "ProcessExit";
}

/** The loaded graphs and the runs in progress. */
export class Host {
  #config;
  #watch;
  #connection;
  #limiter;
  #limits;
  #library;
  #folder;
  #shared;
  #entries = new Map();
  #runs = new Map();
  /** @type {Awaited<ReturnType<typeof loadIndex>> | null} */
  #index = null;
  /** @type {Awaited<ReturnType<typeof loadAuth>> | null} */
  #auth = null;
  /** @type {Awaited<ReturnType<typeof loadApps>> | null} */
  #apps = null;
  #scorer = null; // the project's scorer, if configured
  #exchanges;
  /** @type {string | null} */
  #damage = null;
  #isReady = false;
  #isStopping = false;

  /**
   * @param {number} descriptor of the socket
   * @param {any} config
   */
  constructor(descriptor, config) {
    const { event_bytes: eventBytes, state_bytes: stateBytes, checkpoint_bytes: checkpointBytes } =
      config.limits ?? {};
    this.#config = config;
    this.#limits = {
      eventBytes: eventBytes ?? 1 << 20,
      stateBytes: stateBytes ?? 16 << 20,
      checkpointBytes: checkpointBytes ?? 32 << 20,
    };
    this.#watch = watchLoop(descriptor);
    this.#connection = new Connection(descriptor, (...frame) => this.#onFrame(...frame), this.#watch);
    this.#limiter = new Limiter(this.#connection);
    this.#exchanges = new Exchanges(this.#connection);
  }

  /** Load the project and report READY. */
  async serve() {
    this.#limiter.capture();
    this.#guard();
    this.#makeGlobals();
    if (this.#config.debug) {
      await openInspector(this.#config.debug);
    }
    await this.#load();
    if (this.#config.inspect) {
      await this.#reportInspection();
      return;
    }
    this.#isReady = true;
    if (!this.#config.debug) {
      this.#watch.serve(); // a debugger blocks the loop
    }
    const ready = { graphs: [...this.#entries.keys()], versions: this.#library.versions };
    this.#connection.send(frames.READY, frames.NOBODY, stringify(ready));
  }

  async #load() {
    try {
      const { graphs, store } = this.#config;
      const { library, folder } = await libraryOf(graphs);
      this.#library = library;
      this.#folder = folder;
      this.#index = store?.index ? await loadIndex(store.index) : null;
      const saver = makeSaver(library, this.#limits.checkpointBytes);
      replaceBatching(library.checkpoint);
      const graphStore = makeStore(library, this.#connection, this.#index);
      this.#shared = {
        connection: this.#connection,
        limiter: this.#limiter,
        serializer: new Serializer(library),
        saver,
        library,
        LangChainTracer: library.LangChainTracer,
        versions: library.versions,
        limits: this.#limits,
      };
      this.#entries = await loadAll(graphs, { library, folder, saver, store: graphStore });
      await this.#loadUserCode();
      closePrototype();
    } catch (error) {
      if (error instanceof LibraryFailed) {
        this.#exitUnusable("environment", error.message);
      }
      this.#exitUnusable("load", error instanceof LoadFailed ? error.message : shortStack(error));
    }
  }

  async #loadUserCode() {
    const { auth, http, replay } = this.#config;
    if (auth) {
      this.#auth = await loadAuth(auth.path, this.#limiter);
    }
    if (http?.app || http?.apps) {
      this.#apps = await loadApps(http, this.#exchanges, this.#limiter);
    }
    if (replay?.score) {
      this.#scorer = await loadScorer(replay.score);
    }
  }

  async #reportInspection() {
    const { describeAll } = await import("./inspection.mjs"); // hosts of runs do without it
    let ready;
    try {
      const graphs = await describeAll(this.#entries, this.#folder);
      const userCode = { auth: this.#auth?.describe() ?? null, app: (await this.#apps?.describe()) ?? null };
      ready = { graphs, versions: this.#library.versions, user_code: userCode };
    } catch (error) {
      this.#exitUnusable("inspect", shortStack(error));
    }
    this.#limiter.finish();
    this.#connection.send(frames.READY, frames.NOBODY, dumps(ready));
    this.#connection.flushAndExit(0);
  }

  #exitUnusable(step, message) {
    this.#limiter.finish();
    const body = stringify({ error: { step, message: masked(message).toWellFormed() } });
    this.#connection.send(frames.READY, frames.NOBODY, body);
    this.#connection.flushAndExit(EXIT_UNUSABLE);
  }

  /** Keep the process alive for the other runs when a node fails outside of its promise or ends the process. */
  #guard() {
    process.on("uncaughtException", (error) => {
      if (!this.#isReady) {
        this.#exitUnusable("load", shortStack(error));
      }
      this.#limiter.emit("ERROR", LOGGER, `uncaught exception\n${userStack(error)}`);
      this.#damage ??= `a node threw outside of its promise: ${masked(errorName(error))}: ${errorText(error)}`;
      this.#sendCondition();
    });
    process.on("unhandledRejection", (reason) => {
      this.#limiter.emit("ERROR", LOGGER, `unhandled rejection\n${userStack(reason)}`);
    });
    const exit = (code) => {
      const shown = code ?? process.exitCode ?? 0;
      if (current() !== undefined) {
        throw new ProcessExit(`a node called process.exit(${shown})`);
      }
      const text = `the project called process.exit(${shown})`;
      if (!this.#isReady) {
        this.#exitUnusable("load", text);
      }
      this.#limiter.emit("ERROR", LOGGER, text);
      this.#limiter.finish();
      this.#connection.flushAndExit(Number(shown) || 0);
    };
    Object.assign(process, { exit, reallyExit: exit, abort: () => exit(134) });
  }

  /** Make what LangGraph's libraries expect of a server, before the first import. */
  #makeGlobals() {
    const methods = Object.entries(LEVELS).map(([name, level]) => [
      name,
      (...parts) => this.#limiter.emit(level, "langgraph", parts.map(shownPart).join(" ")),
    ]);
    globalThis[Symbol.for("langgraph.api.sdk-logger")] = Object.fromEntries(methods);
    installLoopback(this.#exchanges, encodeURI(this.#config.http?.mount_prefix ?? ""), () => this.#isReady);
  }

  #onFrame(kind, id, body) {
    switch (kind) {
      case frames.RUN:
        this.#onRun(id, body);
        break;
      case frames.CANCEL:
        this.#runs.get(id)?.cancel();
        break;
      case frames.WIDEN:
        this.#runs.get(id)?.widen(parseDocument(body).stream_mode);
        break;
      case frames.PING:
        this.#connection.send(frames.PONG, id, this.#condition());
        break;
      case frames.STOP:
        this.#stop();
        break;
      case frames.QUERY:
        this.#onQuery(id, parseDocument(body));
        break;
      case frames.OPEN:
        this.#onOpen(id, parseDocument(body));
        break;
      case frames.PART:
        this.#exchanges.receive(id, body);
        break;
      case frames.CHECK:
        this.#check(body);
        break;
    }
  }

  #onRun(id, body) {
    const [document, input, ...stored] = frames.unpack(body);
    const spec = parseDocument(document);
    const entry = this.#entries.get(spec.graph_id);
    if (entry === undefined) {
      const names = [...this.#entries.keys()].join(", ");
      this.#refuse(id, { error: "GraphNotFound", message: `no graph '${spec.graph_id}': there are ${names}` });
      return;
    }
    const execution = new Execution(this.#shared, entry, id, spec, input, stored);
    this.#runs.set(id, execution);
    execution.start().finally(() => {
      this.#runs.delete(id);
      if (this.#damage !== null) {
        this.#sendCondition();
      }
    });
  }

  #refuse(id, error) {
    const document = {
      status: "error", error, thread_status: "error", interrupts: {}, state: null, unchanged: true,
    };
    this.#connection.send(frames.EVENT, id, `error\n${dumps(error)}`);
    const parts = [dumps(document), "null", dumps({ __error__: error })];
    this.#connection.send(frames.DONE, id, frames.pack(parts));
  }

  async #onQuery(id, document) {
    const { op, graph_id: graphId } = document;
    if (op === "embed") {
      this.#answer(id, await this.#embedded(document));
    } else if (op === "score") {
      const missing = { error: "this revision has no replay.score", traceback: null };
      this.#answer(id, dumps(this.#scorer ? await answerScore(this.#scorer, document) : missing));
    } else if (op === "authenticate" || op === "authorize") {
      const answer = await this.#auth?.answer(document);
      this.#answer(id, dumps(answer ?? { failed: "this revision has no auth" }));
    } else if (!this.#entries.has(graphId)) {
      this.#answer(id, refusal({ error: "GraphNotFound", message: `no graph '${graphId}'` }, "invalid"));
    } else {
      await new Query(this.#shared, this.#entries.get(graphId), id, document).run();
    }
  }

  async #embedded({ ops }) {
    try {
      return dumps(await answerEmbed(this.#index, ops));
    } catch (error) {
      return refusal(errorRecord(error)); // any error of the project's embeddings
    }
  }

  #answer(id, document) {
    this.#connection.send(frames.ANSWER, id, frames.pack([document]));
  }

  #onOpen(id, head) {
    if (this.#apps === null) {
      this.#exchanges.begin(id).finish(frames.FAILED, { message: "this revision has no app" });
    } else {
      this.#apps.open(id, head);
    }
  }

  /** Answer a CHECK: which of these runs are in progress. Uses what a run needs, too: the decoder, a turn, the encoder. */
  #check(body) {
    const ids = parseDocument(body);
    setImmediate(() => {
      const running = ids.filter((id) => this.#runs.has(id));
      this.#connection.send(frames.CHECKED, frames.NOBODY, dumps(running));
    });
  }

  #sendCondition() {
    this.#connection.send(frames.PONG, frames.NOBODY, this.#condition());
  }

  /** Return the body of a PONG. Nothing is ever queued or starved: one thread executes all nodes. */
  #condition() {
    return this.#damage === null ? "" : stringify({ queued: 0, starved: [], damage: this.#damage });
  }

  /** Wait for the callbacks that trace runs, and exit. */
  async #stop() {
    if (this.#isStopping) {
      return;
    }
    this.#isStopping = true;
    this.#exchanges.closeAll();
    const timeout = new Promise((resolve) => setTimeout(resolve, TRACING_MS));
    await Promise.race([this.#library?.awaitAllCallbacks(), timeout]);
    this.#limiter.finish();
    this.#connection.flushAndExit(0);
  }
}

function shownPart(part) {
  return typeof part === "string" ? part : part instanceof Error ? userStack(part) : dumps(part);
}

