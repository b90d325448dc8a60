// The nodes of a run over time, from its checkpoints: more come while it works.

import { deployment } from "../core/api.js";
import { html, useEffect, useMemo, useState } from "../core/dom.js";
import { href } from "../core/router.js";
import { count } from "../core/format.js";
import { idOf, parentOf, spansOf } from "./checkpoints.js";
import { ErrorBox, Loading } from "./index.js";
import { isLive } from "./runs.js";
import { createHistory } from "./thread_history.js";
import { Timeline } from "./timeline.js";

/** @typedef {import("./checkpoints.js").State} State */

const LOOK_AGAIN_MS = 1_500;
const MOST_PAGES = 20;

/** @param {{name: string, run: Record<string, any>}} props */
export function RunTimeline({ name, run }) {
  const { run_id: id, thread_id: thread } = run;
  const history = useMemo(() => createHistory(deployment(name), thread, { run_id: id }), [name, id]);
  const [start, setStart] = useState(/** @type {State | null} */ (null));
  const [pages, setPages] = useState(1);
  const live = isLive(run);
  const rows = history.rows.value;
  useEffect(() => () => history.leave(), [history]);
  useEffect(() => {
    void history.refresh();
    if (!live) return;
    const timer = setInterval(() => document.hidden || history.refresh(), LOOK_AGAIN_MS);
    return () => clearInterval(timer);
  }, [history, live]);
  useEffect(() => {
    if (!rows.length || history.isWhole.value || pages >= MOST_PAGES) return;
    void history.more().then(() => setPages(pages + 1));
  }, [rows, pages]);
  const first = history.isWhole.value ? rows.at(-1) : undefined;
  const before = first && first.metadata?.source !== "input" ? parentOf(first) : null;
  useEffect(() => {
    if (before) deployment(name).call("GET", `/threads/${encodeURIComponent(thread)}/state/${encodeURIComponent(before)}`, { query: { select: ["tasks", "checkpoint", "created_at", "metadata", "next", "parent_checkpoint"] } }).then(setStart, () => {});
  }, [name, thread, before]);

  const known = rows.some((state) => idOf(state) === before) || !start ? rows : [...rows, start];
  const spans = useMemo(() => spansOf(known, { runId: id, status: run.status, startedAt: run.started_at ?? null, endedAt: live ? null : (run.ended_at ?? run.updated_at), lost: run.attempts }), [known.length, rows, start, run.started_at, run.ended_at, run.status]);
  const steps = spans.filter((span) => span.status !== "rest").length;
  if (history.error.value && !rows.length) return html`<${ErrorBox} error=${history.error.value} />`;
  if (!spans.length) return history.isLoading.value ? html`<${Loading} />` : html`<p class="quiet">${nothingIn(rows, live)}</p>`;
  return html`
    <p class="quiet">${count(steps)} ${steps === 1 ? "step of a node" : "steps of nodes"}, from the checkpoints that the run wrote${history.isWhole.value ? "" : "; earlier ones are not shown"}.${areParallel(spans) ? " Nodes that work side by side end here with the last of them." : ""} <a href=${href(["d", name, "threads", thread])}>What each changed</a></p>
    <${Timeline} spans=${spans} now=${Date.now()} linkOf=${(/** @type {any} */ span) => span.checkpoint && href(["d", name, "threads", thread], { checkpoint: span.checkpoint })} />`;
}

/** @param {import("./checkpoints.js").Span[]} spans */
const areParallel = (spans) => new Set(spans.map((span) => span.from)).size < spans.length;

/** Why there is no step to show. @param {State[]} rows @param {boolean} live */
function nothingIn(rows, live) {
  if (live) return "No node has worked yet.";
  return rows.length ? "Its steps are not known: the checkpoints that name its nodes were not written, or were removed." : "The run has written no checkpoint.";
}
