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

const TICK_MS = 1000;
const PARENT_MS = 250;
const BLOCKED_TICKS = 5;
const PAUSE_MS = 2000;
const [TURNS, UNSENT] = [0, 1]; // fields of the shared counters

/**
 * Start the watch of the runner, and of this thread's loop once it serves runs.
 *
 * @param {number} descriptor of the runner's socket
 * @returns {{serve: () => void, noteUnsent: (hasUnsent: boolean) => void}} `serve` begins the watch of the loop, and
 *   `noteUnsent` reports whether a part of a frame waits to be sent
 */
export function watchLoop(descriptor) {
  /** @type {Int32Array<SharedArrayBuffer>} */
  const counters = new Int32Array(new SharedArrayBuffer(8));
  const worker = new Worker(new URL(import.meta.url), {
    workerData: { descriptor, counters, parent: process.ppid, folder: process.cwd() },
    execArgv: [],
    resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 2 },
  });
  worker.unref();
  return {
    serve() {
      Atomics.store(counters, TURNS, 1);
      setInterval(() => Atomics.add(counters, TURNS, 1), TICK_MS).unref();
    },
    noteUnsent: (hasUnsent) => Atomics.store(counters, UNSENT, Number(hasUnsent)),
  };
}

/** @param {{descriptor: number, counters: Int32Array<SharedArrayBuffer>, parent: number, folder: string}} data */
function watch({ descriptor, counters, parent, folder }) {
  let seen = -1;
  let reported = -1;
  let ticks = 0;
  setInterval(() => {
    if (process.ppid !== parent) {
      process.kill(process.pid, "SIGKILL"); // the runner has ended
    }
  }, PARENT_MS);
  setInterval(async () => {
    const turn = Atomics.load(counters, TURNS);
    ticks = turn === seen ? ticks + 1 : 0;
    seen = turn;
    if (turn === 0 || ticks < BLOCKED_TICKS || reported === turn) {
      return;
    }
    reported = turn;
    const where = await blocker(folder);
    if (Atomics.load(counters, TURNS) !== turn || Atomics.load(counters, UNSENT)) {
      reported = -1; // the loop goes on, or a part of another frame would come first
      return;
    }
    const message = `${where} has blocked the event loop for ${ticks} s: no other run can go on`;
    const document = JSON.stringify({ level: "WARNING", message, logger: "runyard" });
    writeSync(descriptor, frames.encode(frames.LOG, frames.NOBODY, document));
  }, TICK_MS);
  parentPort?.unref();
}

/** Return the innermost function of the project's code that the main thread executes, as text. */
async function blocker(folder) {
  const session = new Session();
  session.connectToMainThread();
  const post = (method, parameters) =>
    new Promise((resolve) => session.post(method, parameters, (error, result) => resolve(error ? {} : result)));
  const scripts = new Map();
  session.on("Debugger.scriptParsed", ({ params }) => scripts.set(params.scriptId, params));
  const paused = new Promise((resolve) => {
    session.on("Debugger.paused", ({ params }) => resolve(params.callFrames));
    setTimeout(resolve, PAUSE_MS, []); // a native call cannot be paused
  });
  await post("Debugger.enable");
  await post("Debugger.pause");
  const stack = await paused;
  const urlOf = ({ location }) => scripts.get(location.scriptId)?.url ?? "";
  const isOwn = (frame) => {
    const file = fileOf(urlOf(frame));
    return file?.startsWith(folder + path.sep) && !file.includes("/node_modules/");
  };
  const frame = stack.find(isOwn) ?? stack[0];
  const map = frame && scripts.get(frame.location.scriptId)?.sourceMapURL;
  await post("Debugger.resume");
  await post("Debugger.disable");
  session.disconnect();
  if (frame === undefined) {
    return "something";
  }
  const line = originalLine(map, frame.location) ?? frame.location.lineNumber;
  const name = frame.functionName || "a function";
  return `${name} (${path.relative(folder, fileOf(urlOf(frame)) ?? urlOf(frame))}:${line + 1})`;
}

function fileOf(url) {
  return url.startsWith("file:") ? fileURLToPath(url) : url.startsWith("/") ? url : undefined;
}

/** Return the line in the source of a place in a compiled script, counted from 0. */
function originalLine(url, { lineNumber, columnNumber }) {
  const [, data] = /^data:application\/json[^,]*;base64,(.*)$/.exec(url ?? "") ?? [];
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
