/**
 * The thread that watches the event loop and the runner, while the loop may be blocked.
 *
 * One thread executes all runs. A node that computes without end therefore stops all of them, and neither reports itself
 * nor notices the end of the runner. This thread names the code that blocks, and ends the process without its runner.
 */

import { writeSync } from "node:fs";
import { Session } from "node:inspector";
import { SourceMap } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

import * as frames from "./frames.mjs";

const { add, compareExchange, load, store, wait } = Atomics;

const TICK_MS = 1000;
const PARENT_MS = 250;
const BLOCKED_TICKS = 5;
const PAUSE_MS = 5000; // longest wait for a pause, which takes long for large projects on busy machines
const SOURCE_MAP = /^\/\/# sourceMappingURL=data:application\/json[^,]*;base64,(.*)$/;
const [TURNS, SOCKET] = [0, 1]; // fields of the shared counters
const [FREE, LOOP, WATCH] = [0, 1, 2]; // the writer of the socket, which writes whole frames

/**
 * Start the watch of the runner, and of this thread's loop once it serves runs.
 *
 * @param {number} descriptor of the runner's socket
 * @returns {{serve: () => void, takeSocket: () => void, releaseSocket: () => void}} `serve` begins the watch of the loop.
 *   The loop takes the socket before it writes, and releases it after a whole frame
 */
export function watchLoop(descriptor) {
  /** @type {Int32Array<SharedArrayBuffer>} */
  const counters = new Int32Array(new SharedArrayBuffer(8));
  const worker = new Worker(new URL(import.meta.url), {
    workerData: { descriptor, counters, parent: process.ppid, folder: process.cwd() },
    execArgv: [],
    resourceLimits: { maxOldGenerationSizeMb: 64, maxYoungGenerationSizeMb: 2 },
  });
  worker.unref();
  return {
    serve() {
      store(counters, TURNS, 1);
      setInterval(() => add(counters, TURNS, 1), TICK_MS).unref();
    },
    takeSocket() {
      while (compareExchange(counters, SOCKET, FREE, LOOP) === WATCH) {
        wait(counters, SOCKET, WATCH, 1);
      }
    },
    releaseSocket: () => store(counters, SOCKET, FREE),
  };
}

/** @param {{descriptor: number, counters: Int32Array<SharedArrayBuffer>, parent: number, folder: string}} data */
function watch({ descriptor, counters, parent, folder }) {
  let seen = -1;
  let ticks = 0;
  let blocked = -1; // turn in which the loop was seen blocked
  let reported = -1; // turn whose blocker is reported
  /** @type {string | null} */
  let where = null;
  setInterval(() => {
    if (process.ppid !== parent) {
      process.kill(process.pid, "SIGKILL"); // the runner has ended
    }
  }, PARENT_MS);
  setInterval(async () => {
    const turn = load(counters, TURNS);
    ticks = turn === seen ? ticks + 1 : 0;
    seen = turn;
    if (turn === 0 || ticks < BLOCKED_TICKS || reported === turn) {
      return;
    }
    if (blocked !== turn) {
      blocked = turn;
      where = null;
      where = await blocker(folder);
    }
    const message = `${where} has blocked the event loop for ${ticks} s: no other run can go on`;
    if (where !== null && load(counters, TURNS) === turn && isSent(descriptor, counters, message)) {
      reported = turn;
    }
  }, TICK_MS);
  parentPort?.unref();
}

/** Send a warning unless the loop has written a part of a frame, or the runner does not read. Returns whether it is sent. */
function isSent(descriptor, counters, message) {
  if (compareExchange(counters, SOCKET, FREE, WATCH) !== FREE) {
    return false;
  }
  try {
    const document = JSON.stringify({ level: "WARNING", message, logger: "runyard" });
    writeSync(descriptor, frames.encode(frames.LOG, frames.NOBODY, document)); // short, and therefore sent whole or not
    return true;
  } catch {
    return false;
  } finally {
    store(counters, SOCKET, FREE);
  }
}

/** Return the innermost function of the project's code that the main thread executes, as text. */
async function blocker(folder) {
  const session = new Session();
  session.connectToMainThread();
  const post = (method, parameters) =>
    new Promise((resolve) => session.post(method, parameters, (error, result) => resolve(error ? {} : result)));
  const urls = new Map(); // without the source maps of all scripts, which may be larger than this thread's memory
  session.on("Debugger.scriptParsed", ({ params }) => urls.set(params.scriptId, params.url));
  const paused = new Promise((resolve) => {
    session.on("Debugger.paused", ({ params }) => resolve(params.callFrames));
    setTimeout(resolve, PAUSE_MS, []); // a native call cannot be paused, and answers nothing either
  });
  void post("Debugger.enable");
  void post("Debugger.pause");
  const stack = await paused;
  const urlOf = ({ location }) => urls.get(location.scriptId) ?? "";
  const frame = stack.find((one) => isOwn(urlOf(one), folder)) ?? stack[0];
  const { scriptSource } = frame ? await post("Debugger.getScriptSource", { scriptId: frame.location.scriptId }) : {};
  void post("Debugger.resume");
  void post("Debugger.disable").then(() => session.disconnect());
  if (frame === undefined) {
    return "something";
  }
  const line = originalLine(scriptSource, frame.location) ?? frame.location.lineNumber;
  const name = frame.functionName || "a function";
  return `${name} (${path.relative(folder, fileOf(urlOf(frame)) ?? urlOf(frame))}:${line + 1})`;
}

function isOwn(url, folder) {
  const file = fileOf(url);
  return file?.startsWith(folder + path.sep) && !file.includes("/node_modules/");
}

function fileOf(url) {
  return url.startsWith("file:") ? fileURLToPath(url) : url.startsWith("/") ? url : undefined;
}

/** Return the line in the source of a place in a compiled script, whose text ends with its source map. Counts from 0. */
function originalLine(text = "", { lineNumber, columnNumber }) {
  const [, data] = SOURCE_MAP.exec(text.slice(text.lastIndexOf("\n") + 1)) ?? [];
  if (data === undefined) {
    return undefined;
  }
  const map = new SourceMap(JSON.parse(Buffer.from(data, "base64").toString()));
  const entry = map.findEntry(lineNumber, columnNumber ?? 0);
  return "originalLine" in entry ? entry.originalLine : undefined;
}

if (!isMainThread && workerData?.counters) {
  watch(workerData);
}
