// The build of a revision: the failed step and its reason, the steps as a timeline, and the log as it grows.

import { html, useEffect, useMemo } from "../core/dom.js";
import { controlStream, sleep } from "../core/api.js";
import { useStream } from "../core/resource.js";
import { linesOf, stepsOf } from "./build_steps.js";
import { ErrorBox, Loading, Pill } from "./index.js";
import { LogView } from "./log_view.js";
import { Timeline } from "./timeline.js";

const PAUSE_MS = 2000;
const FULL_HEIGHT = 20; // lines of the placeholder, as many as a long log shows

/** @param {{deploymentId: string, revision: any, hasEnded: boolean, onStatus: () => void}} props */
export function BuildLog({ deploymentId, revision, hasEnded, onStatus }) {
  const { data, error, loading, reload } = useStream((signal) => follow(`/v2/deployments/${deploymentId}/revisions/${revision.id}/stream`, signal), [deploymentId, revision.id]);
  const lines = useMemo(() => data.filter(({ event }) => event === "log").map(({ id, data: line }) => ({ ...line, id })), [data]);
  const status = data.findLast(({ event }) => event === "status")?.data.status;
  const steps = useMemo(() => stepsOf(lines, { ...revision, status: status ?? revision.status, endedAt: null }), [lines, status, revision]);
  useEffect(() => {
    if (status && status !== revision.status) onStatus();
  }, [status]);
  if (loading && hasEnded) return html`<${Failure} revision=${revision} /><${Loading} lines=${FULL_HEIGHT} />`;
  return html`
    <${Failure} revision=${revision} />
    <${ErrorBox} error=${error} retry=${reload} />
    ${steps.length > 0 && html`<${Timeline} bands=${steps} now=${Date.now()} label="Steps of the build" detail=${(/** @type {any} */ band) => html`<${LogView} lines=${linesOf(lines, band)} label="Log of the step" height="240px" empty="The step has logged nothing." />`} />`}
    <${LogView} lines=${lines} label="Build log" height="480px" empty=${loading ? "Nothing has been logged yet." : "The build has logged nothing."} />
    ${loading && status && html`<p class="quiet">Status <${Pill} status=${status} /></p>`}`;
}

/** @param {{revision: any}} props */
function Failure({ revision }) {
  if (!revision.status.endsWith("FAILED") || !revision.status_message) return null;
  const [, step, reason] = /^([\w -]{1,40}): ([\s\S]*)$/.exec(revision.status_message) ?? [null, null, revision.status_message];
  return html`<div class="error-box" role="alert">${step && html`<p><b>The step “${step}” failed</b></p>`}<p>${reason.slice(0, 5000)}</p></div>`;
}

/** Yield the events of a revision until its end. Connects again when the connection breaks. @param {string} path @param {AbortSignal} signal */
async function* follow(path, signal) {
  let lastEventId = "";
  for (;;) {
    try {
      for await (const event of controlStream(path, { lastEventId, signal })) {
        lastEventId = event.id || lastEventId;
        if (event.event === "end") return;
        yield event;
      }
    } catch (error) {
      const { status = 0 } = /** @type {any} */ (error);
      if (signal.aborted || (status >= 400 && status < 500 && status !== 429)) throw error;
    }
    await sleep(PAUSE_MS, signal);
  }
}
