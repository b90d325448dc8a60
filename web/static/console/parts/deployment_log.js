// The live log of a serving deployment, filtered by level and text.

import { html } from "../core/dom.js";
import { control, sleep } from "../core/api.js";
import { setQuery } from "../core/router.js";
import { useStream } from "../core/resource.js";
import { ErrorBox, SearchBox, Select } from "./index.js";
import { LogView } from "./log_view.js";

const LEVELS = [{ value: "", label: "All levels" }, ..."INFO WARNING ERROR CRITICAL".split(" ").map((value) => ({ value, label: value === "INFO" ? "INFO and above" : value === "CRITICAL" ? "CRITICAL" : `${value} and above` }))];
const NEWEST = 300, PORTION = 1000, WAIT_SECONDS = 25, PAUSE_MS = 1500;

/** @param {{id: string, query: Record<string, string>}} props */
export function DeploymentLog({ id, query }) {
  const { level = "", text = "" } = query;
  const { data, error, reload } = useStream((signal) => lines(id, { level: level || undefined, query: text || undefined }, signal), [id, level, text]);
  return html`
    <div class="bar">
      <${Select} label="Level" isLabelHidden=${true} value=${level} options=${LEVELS} onChange=${(/** @type {string} */ value) => setQuery({ level: value })} />
      <${SearchBox} label="Lines with this text" value=${text} onInput=${(/** @type {string} */ value) => setQuery({ text: value })} />
    </div>
    <${ErrorBox} error=${error} retry=${reload} />
    <${LogView} lines=${data} label="Log" height="70vh" empty=${level || text ? "No log line matches." : "No log lines yet. The output and logs of graphs appear here."} />`;
}

/** The newest lines, then new ones as they are logged. @param {string} id @param {any} filters @param {AbortSignal} signal */
async function* lines(id, filters, signal) {
  const path = `/v1/projects/${id}/deploy_logs`;
  const newest = await control("POST", path, { body: { ...filters, order: "desc", limit: NEWEST }, signal });
  let read = newest.logs.reverse();
  yield* read;
  let offset = null;
  for (;;) {
    // Reading starts with the last known line, because another line may have the same time. Known lines are dropped below.
    const since = offset ? { offset } : read.length ? { start_time: new Date(read.at(-1).timestamp).toISOString() } : {};
    const page = await control("POST", path, { query: { wait: WAIT_SECONDS }, body: { ...filters, order: "asc", limit: PORTION, ...since }, signal });
    const known = new Set(read.map((/** @type {any} */ line) => line.id));
    const fresh = page.logs.filter((/** @type {any} */ line) => !known.has(line.id));
    yield* fresh;
    if (fresh.length) read = fresh;
    offset = page.next_offset ?? offset;
    if (!fresh.length) await sleep(PAUSE_MS, signal);
  }
}
