/**
 * The project's scorer: `(inputs, referenceOutput, output, run) => {name: number}`, sync or async.
 *
 * A call that does not settle in time is given up. A scorer that blocks the event loop holds up its host, which answers
 * the calls of scorers only. The runner then ends the call, and the host.
 */

import { LoadFailed, loadObject } from "../loading.mjs";
import { shortStack } from "../output.mjs";
import { errorRecord } from "../serialization.mjs";

const { setTimeout, clearTimeout } = globalThis;
const KEY = "replay.score";
const SCORE_SECONDS = 20;
const MAX_SCORES = 100;
const MAX_NAME = 100;
const MAX_NUMBER = 1e100; // so that sums of all cases are finite

/** The scorer's result is not an object of numbers. */
class NotScores extends Error {}

/** Return the scorer that langgraph.json names. Throws LoadFailed. */
export async function loadScorer(location) {
  const score = await loadObject(KEY, location);
  if (typeof score !== "function") {
    throw new LoadFailed(`${KEY}: ${location} is no function: ${typeof score}`);
  }
  return score;
}

/** Return {"scores": {name: number}}, or {"error", "traceback"} if the scorer fails. */
export async function answerScore(scorer, { input, reference, output, run }, seconds = SCORE_SECONDS) {
  let timer;
  const late = new Promise((_, reject) => {
    const error = new NotScores(`the scorer did not return within ${seconds} s`);
    timer = setTimeout(() => reject(error), seconds * 1000);
  });
  try {
    return { scores: numbers(await Promise.race([scorer(input, reference, output, run), late])) };
  } catch (error) {
    if (error instanceof NotScores) {
      return { error: error.message, traceback: null };
    }
    const { error: name, message } = errorRecord(error);
    return { error: `${name}: ${message}`, traceback: shortStack(error) };
  } finally {
    clearTimeout(timer);
  }
}

function numbers(result) {
  if (typeof result !== "object" || result === null || Array.isArray(result)) {
    const kind = result === null ? "null" : Array.isArray(result) ? "an array" : typeof result;
    throw new NotScores(`the scorer returned ${kind}: an object of numbers is needed`);
  }
  const scores = Object.entries(result);
  if (scores.length > MAX_SCORES) {
    throw new NotScores(`the scorer returned ${scores.length} scores: the limit is ${MAX_SCORES}`);
  }
  for (const [name, value] of scores) {
    if (name.length === 0 || name.length > MAX_NAME) {
      throw new NotScores(`the scorer returned a score named '${name.slice(0, MAX_NAME)}'`);
    }
    if (typeof value !== "boolean" && !(Number.isFinite(value) && Math.abs(value) <= MAX_NUMBER)) {
      const shown = String(value).slice(0, 100);
      throw new NotScores(`the score '${name}' is ${shown}: a number from -1e+100 to 1e+100 is needed`);
    }
  }
  return Object.fromEntries(scores.map(([name, value]) => [name, Number(value)]));
}
