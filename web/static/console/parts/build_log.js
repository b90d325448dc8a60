// The build log of a revision as it grows; of one that failed, the step and its reason on top.

import { html, useEffect, useMemo } from "../core/dom.js";
import { controlStream, sleep } from "../core/api.js";
import { useStream } from "../core/resource.js";
import { ErrorBox, Pill } from "./index.js";
import { LogView } from "./log_view.js";

const PAUSE_MS = 2000;

/** @param {{deploymentId: string, revision: any, onStatus: () => void}} props */
export function BuildLog({ deploymentId, revision, onStatus }) {
  const { data, error, loading, reload } = useStream((signal) => follow(`/v2/deployments/${deploymentId}/revisions/${revision.id}/stream`, signal), [deploymentId, revision.id]);
  const lines = useMemo(() => data.filter(({ event }) => event === "log").map(({ id, data: line }) => ({ ...line, id })), [data]);
  const status = data.findLast(({ event }) => event === "status")?.data.status;
  useEffect(() => {
    if (status && status !== revision.status) onStatus();
  }, [status]);
  return html`
    <${Failure} revision=${revision} />
    <${ErrorBox} error=${error} retry=${reload} />
    <${LogView} lines=${lines} label="Build log" height="480px" empty=${loading ? "It has logged nothing yet." : "It has logged nothing."} />
    ${loading && status && html`<p class="quiet">Now <${Pill} status=${status} /></p>`}`;
}

/** @param {{revision: any}} props */
function Failure({ revision }) {
  if (!revision.status.endsWith("FAILED") || !revision.status_message) return null;
  const [, step, reason] = /^([\w -]{1,40}): ([\s\S]*)$/.exec(revision.status_message) ?? [null, null, revision.status_message];
  return html`<div class="error-box" role="alert">${step && html`<p><b>The step “${step}” failed</b></p>`}<p>${reason.slice(0, 5000)}</p></div>`;
}

/** A revision's events to its end, also when the connection breaks. @param {string} path @param {AbortSignal} signal */
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
