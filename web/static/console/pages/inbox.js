// The inbox: questions of graphs that wait for a person, and the form that answers them.

import { control, deployment } from "../core/api.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../core/dom.js";
import { count } from "../core/format.js";
import { countOpenQuestions } from "../core/inbox.js";
import { useResource } from "../core/resource.js";
import { href, navigate, setQuery } from "../core/router.js";
import { can, me } from "../core/session.js";
import { ChoiceFilter, FilterBar, PageBar, TextFilter } from "../parts/filter_bar.js";
import { AGES, STATUSES, afterAnswer, filtersOf, formKey, isAnswerable, nameOf, neighbour, titleOf } from "../parts/inbox.js";
import { BulkPanel } from "../parts/inbox_bulk.js";
import { AssignDialog, KeysDialog, LinkDialog, SnoozeDialog } from "../parts/inbox_dialogs.js";
import { QuestionList } from "../parts/inbox_list.js";
import { QuestionPanel } from "../parts/inbox_question.js";
import { Button, Empty, ErrorBox, Loading, Page, notify } from "../parts/index.js";
import { useShortcuts } from "../parts/shortcuts.js";

/** @typedef {import("../parts/inbox.js").Question} Question */
/** @typedef {{question: Question, runId: string | null}} Sent the last answer that was sent from here; a cancelled run has no `runId` */

const LIMIT = 50;
const POLL_MS = 3_000;
const NARROW = matchMedia("(max-width: 900px)"); // there the list and the question are shown one at a time
const FILTERS = ["status", "deployment", "assistant_id", "assignee", "age", "metadata"];

export const title = () => "Inbox";

/** @param {{query: Record<string, string>}} props */
export default function InboxPage({ query }) {
  const { question: chosen, ...filterQuery } = query;
  const { filters, error: filterError } = filtersOf(query);
  const offset = Number(query.offset) || 0;
  const list = useResource(async (signal) => {
    if (filterError) return null;
    return control("GET", "/v2/inbox", { query: { ...filtersOf(query).filters, limit: LIMIT, offset }, signal });
  }, [JSON.stringify(filterQuery)], { every: POLL_MS });
  /** @type {Question[]} */
  const rows = list.data?.resources ?? [];
  const ids = rows.map(({ id }) => id);

  const read = (/** @type {string} */ id, /** @type {AbortSignal | undefined} */ signal = undefined) => control("GET", `/v2/inbox/${encodeURIComponent(id)}`, { signal });
  const detail = useResource(async (signal) => (chosen ? read(chosen, signal) : null), [chosen], { every: POLL_MS });
  /** @type {Question | undefined} */
  const question = detail.data ?? rows.find(({ id, is_value_left_out: isLeftOut }) => id === chosen && !isLeftOut);

  const drafts = useMemo(() => new Map(), []);
  const draftOf = (/** @type {string} */ key) => {
    if (!drafts.has(key)) drafts.set(key, {});
    return drafts.get(key);
  };
  const [selected, setSelected] = useState(/** @type {Map<string, Question>} */ (new Map()));
  const [dialog, setDialog] = useState(/** @type {null | "assign" | "snooze" | "link" | "keys"} */ (null));
  const [sent, setSent] = useState(/** @type {Sent | null} */ (null));
  const moveFocus = useRef(false);

  const choose = (/** @type {string | undefined} */ id) => setQuery({ question: id ?? null }, { push: NARROW.matches });
  const reload = () => {
    list.reload();
    detail.reload();
    void countOpenQuestions();
  };
  useEffect(() => {
    if (!chosen && !NARROW.matches && ids.length) setQuery({ question: ids[0] });
  }, [chosen, ids[0]]);
  useLayoutEffect(() => {
    // A later effect would take the focus from a form that a key has opened meanwhile.
    if (moveFocus.current) focusRow();
    moveFocus.current = false;
  }, [chosen]);

  const select = (/** @type {Question} */ row, /** @type {boolean} */ isSelected) => setSelected((/** @type {Map<string, Question>} */ before) => {
    const next = new Map(before);
    if (isSelected) next.set(row.id, row);
    else next.delete(row.id);
    return next;
  });
  const selectRow = async (/** @type {string} */ id, /** @type {boolean} */ isSelected) => {
    const row = rows[ids.indexOf(id)];
    try {
      select(isSelected && row.is_value_left_out ? await read(id) : row, isSelected);
    } catch (error) {
      notify(/** @type {Error} */ (error).message, "error");
      setSelected((/** @type {Map<string, Question>} */ before) => new Map(before)); // the checkbox is drawn again
    }
  };
  const selection = [...selected.values()];
  const equal = question ? rows.filter((row) => isAnswerable(row) && formKey(row) === formKey(question)) : [];

  const change = async (/** @type {{assignee?: string | null, snoozed_until?: string | null}} */ changes) => {
    const changed = selection.length ? selection : question ? [question] : [];
    await Promise.all(changed.map(({ id }) => control("PATCH", `/v2/inbox/${encodeURIComponent(id)}`, { body: changes })));
    if (changes.snoozed_until && !selection.length && !query.status) choose(afterAnswer(ids, changed[0].id));
    if (changes.snoozed_until !== undefined) setSelected(new Map());
    reload();
  };
  const toggleMine = () => {
    const name = nameOf(me.value);
    const isMine = (selection.length ? selection : [question]).every((each) => each?.assignee === name);
    change({ assignee: isMine ? null : name }).catch((error) => notify(error.message, "error"));
  };
  const answered = (/** @type {Question} */ row, /** @type {string | null} */ runId) => {
    drafts.delete(row.id);
    setSent({ question: row, runId });
    moveFocus.current = !NARROW.matches;
    choose(NARROW.matches ? undefined : afterAnswer(ids, row.id));
    reload();
  };
  const answeredAll = (/** @type {string[]} */ done, /** @type {string} */ key) => {
    drafts.delete(key);
    setSelected((/** @type {Map<string, Question>} */ before) => new Map([...before].filter(([id]) => !done.includes(id))));
    choose(ids.find((id) => !done.includes(id)));
    reload();
  };

  const canChange = () => can("run") && (selection.length > 0 || (question && isAnswerable(question)));
  const move = (/** @type {number} */ step) => {
    const id = neighbour(ids, chosen, step);
    if (!id) return;
    if (id === chosen) return focusRow();
    moveFocus.current = true;
    setQuery({ question: id });
  };
  useShortcuts({
    j: () => move(1),
    k: () => move(-1),
    Enter: () => (chosen ? focusForm() : move(1)),
    x: () => question && can("run") && isAnswerable(question) && select(question, !selected.has(question.id)),
    a: () => canChange() && toggleMine(),
    A: () => canChange() && setDialog("assign"),
    s: () => canChange() && setDialog("snooze"),
    l: () => canChange() && !selection.length && setDialog("link"),
    t: () => question && navigate(["d", question.deployment_name, "threads", question.thread_id]),
    "?": () => setDialog("keys"),
  });
  const leaveForm = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    focusRow();
  };

  const isFiltered = FILTERS.some((name) => query[name]);
  const total = list.data?.total ?? 0;
  return html`
    <${Page} title="Inbox" actions=${html`<span class="inbox-help"><${Button} onClick=${() => setDialog("keys")}>Shortcuts<//></span>`}>
      <div class=${chosen || selection.length ? "inbox has-choice" : "inbox"}>
      <${Filters} query=${query} rows=${rows} error=${filterError} />
      ${sent && html`<p class="inbox-sent" role="status">${sent.runId ? "Answer sent to" : "Cancelled the run of"} <a href=${href(["d", sent.question.deployment_name, "threads", sent.question.thread_id])}>${titleOf(sent.question)}</a>
        ${sent.runId && html` · <a href=${href(["d", sent.question.deployment_name, "runs", sent.question.thread_id, sent.runId])}>Show the run</a>`}</p>`}
      <${ErrorBox} error=${list.error} retry=${list.reload} />
      ${!list.data && list.loading && html`<${Loading} />`}
      ${list.data && html`<div class="inbox-split">
        <div class="inbox-side">
          ${rows.length > 0 && html`<p class="quiet inbox-count" aria-live="polite">${count(total)} ${total === 1 ? "question" : "questions"}, ${orderText(query.status)}</p>`}
          ${rows.length === 0 && html`<${NoQuestions} isFiltered=${isFiltered} />`}
          <${QuestionList} questions=${rows} chosen=${chosen} query=${query} selected=${new Set(selected.keys())} canSelect=${can("run")}
            onSelect=${selectRow} />
          <${PageBar} offset=${offset} limit=${LIMIT} found=${rows.length} total=${total} />
        </div>
        <section class="inbox-panel" aria-label="Question" onKeyDown=${leaveForm}>
          ${(chosen || selection.length > 0) && html`<p class="inbox-back"><a href=${href("/inbox", filterQuery)} onClick=${() => setSelected(new Map())}>Back to the list</a></p>`}
          ${selection.length > 0 ? html`<${BulkPanel} questions=${selection} draftOf=${draftOf} onAnswered=${answeredAll} onClear=${() => setSelected(new Map())} onDialog=${setDialog} />`
            : question ? html`<${QuestionPanel} key=${question.id} question=${question} draft=${draftOf(question.id)} equal=${equal.length} onChange=${change} onAnswer=${answered}
                onReload=${reload} onDialog=${setDialog} onSelectEqual=${() => setSelected(new Map(equal.map((row) => [row.id, row])))} />`
            : chosen && (detail.error ? html`<${ErrorBox} error=${detail.error} />` : html`<${Loading} />`)}
        </section>
      </div>`}
      </div>
      ${dialog === "keys" && html`<${KeysDialog} onClose=${() => setDialog(null)} />`}
      ${dialog === "assign" && html`<${AssignDialog} assignee=${selection.length ? null : question?.assignee ?? null} names=${namesIn(rows)} onChange=${change} onClose=${() => setDialog(null)} />`}
      ${dialog === "snooze" && html`<${SnoozeDialog} isSnoozed=${!selection.length && question?.status === "snoozed"} onChange=${change} onClose=${() => setDialog(null)} />`}
      ${dialog === "link" && question && html`<${LinkDialog} question=${question} onClose=${() => setDialog(null)} />`}
    <//>`;
}

/** Names that a question can be assigned to: the caller, and everybody who has one now. @param {Question[]} rows @returns {string[]} */
const namesIn = (rows) => [...new Set([nameOf(me.value), ...rows.flatMap(({ assignee }) => (assignee ? [assignee] : []))])];

/** @param {{query: Record<string, string>, rows: Question[], error: string | null}} props */
function Filters({ query, rows, error }) {
  const { data: deployments } = useResource((signal) => control("GET", "/v2/deployments", { query: { limit: 100 }, signal }), []);
  const { data: assistants } = useResource(async (signal) => {
    if (!query.deployment) return [];
    return deployment(query.deployment).call("POST", "/assistants/search", { body: { limit: 100 }, signal });
  }, [query.deployment]);
  const [name] = namesIn([]);
  const names = [...new Set(rows.flatMap(({ deployment_name: each }) => each).concat((deployments?.resources ?? []).map((/** @type {any} */ each) => each.name)))].sort();
  return html`
    <${FilterBar} label="Filter questions">
      <${ChoiceFilter} label="Status" name="status" value=${query.status} options=${STATUSES} />
      <${ChoiceFilter} label="Deployment" name="deployment" value=${query.deployment} options=${[{ value: "", label: "Any deployment" }, ...names.map((value) => ({ value, label: value }))]} />
      ${query.deployment && html`<${ChoiceFilter} label="Assistant" name="assistant_id" value=${query.assistant_id}
        options=${[{ value: "", label: "Any assistant" }, ...(assistants ?? []).map((/** @type {any} */ each) => ({ value: each.assistant_id, label: each.name || each.graph_id }))]} />`}
      <${ChoiceFilter} label="Assignee" name="assignee" value=${query.assignee}
        options=${[{ value: "", label: "Anybody" }, ...namesIn(rows).map((value) => ({ value, label: value === name ? `Me (${value})` : value }))]} />
      <${ChoiceFilter} label="Age" name="age" value=${query.age} options=${AGES} />
      <${TextFilter} label="Metadata of the thread" name="metadata" value=${query.metadata} placeholder="customer=acme, or JSON" error=${error} wide />
    <//>`;
}

/** The order of the list, which depends on the status. @param {string | undefined} status */
const orderText = (status) => (!status || status === "snoozed" ? "oldest first" : status === "all" ? "newest first" : "last ended first");

/** @param {{isFiltered: boolean}} props */
function NoQuestions({ isFiltered }) {
  if (isFiltered) return html`<${Empty} title="No question matches" text="Remove a filter, or choose another status." action=${html`<a href="#/inbox">Show open questions</a>`} />`;
  return html`<${Empty} title="No open questions" text="A question appears here when a graph calls interrupt() or stops at a breakpoint." action=${html`<a href="#/inbox?status=answered">Show answered questions</a>`} />`;
}

const focusRow = () => /** @type {HTMLElement | null} */ (document.querySelector(".inbox-row.is-chosen a"))?.focus();

function focusForm() {
  const controls = "textarea, select, input, .question-send button";
  /** @type {HTMLElement | null} */ (document.querySelector(`.inbox-panel .question :is(${controls}):not(:disabled)`))?.focus();
}
