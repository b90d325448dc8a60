// A replay: its verdict with the figures of both sides, and one row for each case.

import { control } from "../core/api.js";
import { useDeploymentResource } from "../core/deployments.js";
import { html, useState } from "../core/dom.js";
import { between, count, duration, plain, short } from "../core/format.js";
import { useDocumentTitle, useTitles } from "../core/names.js";
import { useResource } from "../core/resource.js";
import { href, navigate, setQuery } from "../core/router.js";
import { can } from "../core/session.js";
import { Criteria } from "../parts/criteria.js";
import { ChoiceFilter, FilterBar, PageBar } from "../parts/filter_bar.js";
import { ReplayForm } from "../parts/replay_form.js";
import { MEANINGS, OUTCOMES, changeInWords, differenceInWords, figureInWords, isInProgress, metricOf, outcomesInWords, replayName, statusOfCase, verdictInWords } from "../parts/replays.js";
import { RunRevision } from "../parts/run_facts.js";
import { Tile } from "../parts/tiles.js";
import { Ago, Button, Empty, ErrorBox, Id, Loading, Page, Pill, Table, ask, notify } from "../parts/index.js";

/** @typedef {import("../parts/replays.js").Replay} Replay */
/** @typedef {import("../parts/replays.js").Case} Case */

const PAGE = 50;
const LOOK_AGAIN_MS = 2_000;
const CHOICES = [{ value: "", label: "All" }, ...OUTCOMES.map((value) => ({ value, label: `${value[0].toUpperCase()}${value.slice(1)}` }))];
const RIGHT = /** @type {const} */ ("right");
const FIGURES = [["duration_seconds", "Duration"], ["tokens", "Tokens"], ["cost", "Cost"]];
const STATISTICS = [["median", "median"], ["p95", "p95"], ["total", "total"]];

/** @param {Record<string, string>} params */
export const title = (params) => `Replay ${short(params.replay)}`;

/** @param {{params: Record<string, string>, query: Record<string, string>}} props */
export default function ReplayPage({ params: { name, replay: id }, query }) {
  const [isAgain, setAgain] = useState(false);
  const found = useDeploymentResource({ name });
  const record = found.data;
  const path = record && `/v2/deployments/${record.id}/replays/${encodeURIComponent(id)}`;
  const { data: replay, error, reload } = useResource(async (signal) => (path ? control("GET", path, { signal }) : undefined), [path], { every: LOOK_AGAIN_MS });
  const heading = replay ? replayName(replay) : "Replay";
  useDocumentTitle(replay && `${heading} · ${name}`);
  const crumbs = [{ label: name }, { label: "Replays", href: href(["d", name, "replays"]) }];
  if (!found.loading && !record) return html`<${Page} title="Replay" crumbs=${crumbs}>${found.error ? html`<${ErrorBox} error=${found.error} />` : html`<${Empty} title="There is no such deployment" text=${name} />`}<//>`;
  const actions = replay && can("deploy") && html`<${Actions} path=${path} name=${name} replay=${replay} onDone=${reload} onAgain=${() => setAgain(true)} />`;
  return html`
    <${Page} title=${heading} crumbs=${crumbs} status=${replay && html`<${Pill} status=${replay.verdict ?? replay.status} />${isInProgress(replay) && html` <span class="live" role="status">live</span>`}`} actions=${actions}>
      <${ErrorBox} error=${error} />
      ${!replay && !error && html`<${Loading} shape="facts" />`}
      ${replay && html`
        <${Verdict} replay=${replay} />
        <${Counts} name=${name} replay=${replay} />
        <div class="replay-summary">
          ${replay.summary && html`<${Figures} summary=${replay.summary} />`}
          <${Facts} name=${name} replay=${replay} />
        </div>
        <h2>Cases</h2>
        <${Cases} key=${`${query.outcome} ${query.offset}`} name=${name} path=${path} replay=${replay} outcome=${query.outcome ?? ""} offset=${Number(query.offset) || 0} />`}
      ${isAgain && html`<${ReplayForm} record=${record} before=${replay} onClose=${() => setAgain(false)} />`}
    <//>`;
}

/** @param {{path: string, name: string, replay: Replay, onDone: () => void, onAgain: () => void}} props */
function Actions({ path, name, replay, onDone, onAgain }) {
  const cancel = async () => {
    if (!(await ask({ title: "Cancel this replay?", text: "Its running cases are cancelled. Cases that have ended keep their results.", action: "Cancel the replay", kind: "danger" }))) return;
    await control("POST", `${path}/cancel`);
    notify("The replay was cancelled");
    onDone();
  };
  const remove = async () => {
    if (!(await ask({ title: "Delete this replay?", text: "Its results, and the threads of its cases, are deleted. The past runs stay as they are.", action: "Delete", kind: "danger" }))) return;
    await control("DELETE", path);
    notify("The replay was deleted");
    navigate(["d", name, "replays"]);
  };
  return html`
    <${Button} onClick=${onAgain} title="With the same runs">Replay again…<//>
    ${isInProgress(replay) ? html`<${Button} kind="danger" onClick=${cancel}>Cancel…<//>` : html`<${Button} kind="danger" onClick=${remove}>Delete…<//>`}`;
}

/** @param {{replay: Replay}} props */
function Verdict({ replay }) {
  const { kind, title: words, text } = verdictInWords(replay);
  const rules = replay.summary?.rules ?? [];
  const columns = [
    { title: "Fails if", key: "rule", cell: (/** @type {any} */ one) => html`<code>${plain(one.rule)}</code>` },
    { title: "Result", key: "status", cell: (/** @type {any} */ one) => (one.failed === null ? html`<span class="quiet">no figures</span>` : html`<${Pill} status=${one.failed ? "failed" : "ok"} />`) },
    { title: "Original", key: "original", align: RIGHT, cell: (/** @type {any} */ one) => figureInWords(metricOf(one.rule), one.original) },
    { title: "Replay", key: "value", align: RIGHT, cell: (/** @type {any} */ one) => html`<strong>${figureInWords(metricOf(one.rule), one.value)}</strong>` },
    { title: "Limit", key: "limit", align: RIGHT, cell: (/** @type {any} */ one) => figureInWords(metricOf(one.rule), one.limit) },
  ];
  return html`
    <section class=${`verdict is-${kind || "plain"}`} aria-label="Verdict">
      <p><strong>${words}.</strong> ${plain(text)}</p>
      ${rules.length > 0 ? html`<${Table} label="Conditions of the rule" columns=${columns} rows=${rules} rowKey="rule" />`
        : replay.fail_on && html`<p class="hint">Fails if <code>${plain(replay.fail_on)}</code></p>`}
    </section>`;
}

/** The progress, and the number of cases of each outcome. @param {{name: string, replay: Replay}} props */
function Counts({ name, replay: { id, counts, status, summary } }) {
  const ended = counts.total - counts.waiting - counts.running;
  const skipped = Object.entries(summary?.skipped ?? {});
  return html`
    ${(status === "preparing" || status === "running") && html`<p class="progress" role="status"><progress max=${Math.max(counts.total, 1)} value=${ended} aria-label="Ended cases"></progress> ${counts.total ? `${outcomesInWords(counts)}${counts.running ? `; ${count(counts.running)} running` : ""}` : "The past runs are being selected"}</p>`}
    <div class="tiles plain outcomes">
      ${OUTCOMES.map((outcome) => html`<${Tile} key=${outcome} label=${outcome} value=${count(counts[outcome])} title=${MEANINGS[outcome]} href=${counts[outcome] ? href(["d", name, "replays", id], { outcome }) : undefined} note=${MEANINGS[outcome]} />`)}
    </div>
    ${skipped.length > 0 && html`<p class="quiet">Skipped: ${skipped.map(([reason, n]) => `${count(/** @type {number} */ (n))} because ${plain(reason)}`).join("; ")}.</p>`}`;
}

/** The figures of both sides over the cases that have them on both. @param {{summary: Record<string, any>}} props */
function Figures({ summary }) {
  const rows = [
    ...FIGURES.flatMap(([metric, label]) => STATISTICS.filter(([statistic]) => metric !== "duration_seconds" || statistic !== "total")
      .map(([statistic, words]) => ({ metric, label: `${label}, ${words}`, original: summary[metric]?.original?.[statistic], replay: summary[metric]?.replay?.[statistic] }))),
    ...Object.entries(summary.scores ?? {}).map(([score, { original, replay, pairs }]) => ({ metric: "score", label: `Score ${plain(score)}, mean of ${pairs}`, original, replay })),
  ].filter(({ original, replay }) => typeof original === "number" && typeof replay === "number");
  if (!rows.length) return html`<p class="quiet">No case has figures on both sides.</p>`;
  const columns = [
    { title: "Figure", key: "label" },
    { title: "Original", key: "original", align: RIGHT, cell: (/** @type {any} */ row) => figureInWords(row.metric, row.original) },
    { title: "Replay", key: "replay", align: RIGHT, cell: (/** @type {any} */ row) => figureInWords(row.metric, row.replay) },
    { title: "Change", key: "change", align: RIGHT, priority: /** @type {const} */ (1), cell: (/** @type {any} */ row) => changeInWords(row.metric, row.original, row.replay) },
  ];
  return html`<div class="replay-figures"><${Table} label="Figures of both sides" columns=${columns} rows=${rows} rowKey="label" /></div>`;
}

/** @param {{name: string, replay: Replay}} props */
function Facts({ name, replay }) {
  const bounds = [replay.max_tokens && `${count(replay.max_tokens)} tokens`, replay.max_cost && figureInWords("cost", replay.max_cost), replay.max_minutes && `${count(replay.max_minutes)} minutes`].filter(Boolean);
  const tools = replay.tools === "live" ? "executed" : replay.live_tools.length ? `recorded, else ${replay.live_tools.map((/** @type {string} */ tool) => plain(tool)).join(", ")} may run` : "recorded";
  return html`
    <dl class="facts">
      <dt>Revision</dt><dd><${RunRevision} name=${name} id=${replay.revision_id} /></dd>
      <dt>Past runs</dt><dd><${Criteria} name=${name} where=${replay.where} /> <span class="quiet">· sample of ${count(replay.sample)}, seed ${replay.seed}</span></dd>
      <dt>Tools</dt><dd>${tools}<span class="quiet"> · models ${replay.models === "live" ? "called" : "recorded"}${replay.network ? " · network allowed" : ""}</span></dd>
      <dt>Bounds</dt><dd>${bounds.length ? bounds.join(", ") : "none"}<span class="quiet"> · ${count(replay.concurrency)} ${replay.concurrency === 1 ? "case" : "cases"} at once</span></dd>
      <dt>Started</dt><dd><${Ago} at=${replay.created_at} />${replay.created_by && html` <span class="quiet">by</span> ${plain(replay.created_by.name || replay.created_by.key_id)}`}${replay.ended_at && html`<span class="quiet"> · took ${duration(between(replay.created_at, replay.ended_at))}</span>`} <span class="quiet">· id </span><${Id} value=${replay.id} /></dd>
    </dl>`;
}

/** @param {{name: string, path: string, replay: Replay, outcome: string, offset: number}} props */
function Cases({ name, path, replay, outcome, offset }) {
  const query = { outcome, limit: PAGE, offset };
  const { data, error, reload } = useResource(async (signal) => (await control("GET", `${path}/cases`, { query, signal })).resources,
    [path, outcome, offset, replay.ended_at], { every: isInProgress(replay) ? LOOK_AGAIN_MS : undefined });
  const titles = useTitles(name, (data ?? []).map((/** @type {Case} */ one) => one.thread_id));
  const { total } = replay.counts;
  const columns = [
    { title: "Case", key: "case", primary: true, cell: (/** @type {Case} */ one) => html`<a title=${one.run_id} href=${href(["d", name, "replays", replay.id, one.position])}>Case\u00a0${one.position}</a>` },
    { title: "Outcome", key: "status", cell: (/** @type {Case} */ one) => html`<${Pill} status=${statusOfCase(one)} title=${MEANINGS[one.outcome]} />` },
    { title: "First difference", key: "difference", cell: (/** @type {Case} */ one) => html`<span class="why">${differenceInWords(one)}</span>` },
    { title: "Thread", key: "thread", priority: /** @type {const} */ (3), cell: (/** @type {Case} */ one) => html`<span class="cut">${titles.get(one.thread_id) ?? short(one.thread_id)}</span>` },
    { title: "Tokens", key: "tokens", align: RIGHT, cell: (/** @type {Case} */ one) => html`<${Both} metric="tokens" sides=${one.comparison?.tokens} />` },
    { title: "Cost", key: "cost", align: RIGHT, cell: (/** @type {Case} */ one) => html`<${Both} metric="cost" sides=${one.comparison?.cost} />` },
    { title: "Time", key: "time", align: RIGHT, cell: (/** @type {Case} */ one) => html`<${Both} metric="duration_seconds" sides=${one.comparison?.duration_seconds} />` },
  ];
  const all = html`<button type="button" onClick=${() => setQuery({ outcome: null, offset: null })}>Show all cases</button>`;
  const empty = outcome ? html`<${Empty} title=${`No case is ${outcome}`} text=${MEANINGS[outcome]} action=${all} />`
    : isInProgress(replay) ? html`<${Empty} title="The past runs are being selected" text="The cases appear here as soon as they are known." />`
      : html`<${Empty} title="No past run matches the filters" text="Runs are kept for some time only, and runs without a thread are deleted when they end. Choose a longer period or fewer filters." />`;
  return html`
    <${FilterBar} label="Cases"><${ChoiceFilter} label="Outcome" name="outcome" value=${outcome} options=${CHOICES} /><//>
    <${ErrorBox} error=${error} retry=${reload} />
    ${!data && !error && html`<${Loading} />`}
    ${data && html`
      <${Table} label="Cases" columns=${columns} rows=${data} rowKey="position" empty=${empty} onRow=${(/** @type {Case} */ one) => navigate(["d", name, "replays", replay.id, one.position])} />
      <${PageBar} offset=${offset} limit=${PAGE} found=${data.length} total=${outcome ? replay.counts[outcome] : total} />`}`;
}

/** A figure of the original and of the replay. @param {{metric: string, sides: {original: number | null, replay: number | null} | undefined}} props */
function Both({ metric, sides }) {
  if (!sides) return html`<span class="quiet">–</span>`;
  return html`<span class="both"><span class="quiet">${figureInWords(metric, sides.original)} →</span> ${figureInWords(metric, sides.replay)}</span>`;
}
