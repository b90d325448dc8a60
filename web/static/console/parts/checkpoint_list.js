// A thread's checkpoints one under the other, newest first, with the lines of its branches.

import { html, useMemo } from "../core/dom.js";
import { duration, plain } from "../core/format.js";
import { failedTask, idOf, lanesOf, mainLine, makerOf, parentOf, questionsOf, secondsOf, writtenBy } from "./checkpoints.js";
import { Ago } from "./index.js";
import { Windowed } from "./windowed.js";

/** @typedef {import("./checkpoints.js").State} State */
/** @typedef {import("./checkpoints.js").Lane} Lane */

const ROW_HEIGHT = 44;
const LANE_WIDTH = 14;
const MOST_LANES = 6;
const AHEAD = 30;
const MOST_QUESTIONS = 3;

/**
 * @param {{rows: State[], runs: Map<string, import("./checkpoints.js").RunTimes>, isWhole: boolean, chosen: string | null, onChoose: (id: string) => void, onEnd: () => void}} props
 */
export function CheckpointList({ rows, runs, isWhole, chosen, onChoose, onEnd }) {
  const drawn = useMemo(() => {
    const family = rows.map((state) => ({ id: idOf(state), parent: parentOf(state) }));
    const lanes = lanesOf(family);
    const width = Math.min(Math.max(...lanes.map((each) => Math.max(each.lane, ...each.through)), 0) + 1, MOST_LANES) * LANE_WIDTH;
    return { lanes, width, main: mainLine(family), places: new Map(family.map(({ id }, at) => [id, at])) };
  }, [rows]);
  const active = chosen === null ? -1 : (drawn.places.get(chosen) ?? -1);
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!step || !rows.length) return;
    event.preventDefault();
    onChoose(idOf(rows[Math.min(Math.max(active + step, 0), rows.length - 1)]));
  };
  const render = (/** @type {number} */ at) => {
    const parent = rows[drawn.places.get(parentOf(rows[at]) ?? "") ?? -1];
    const id = idOf(rows[at]);
    return html`<${Row} key=${id} state=${rows[at]} parent=${parent} lane=${drawn.lanes[at]} width=${drawn.width}
      isLeft=${!drawn.main.has(id)} isNewest=${at === 0} seconds=${secondsOf(rows[at], parent, runs)} isChosen=${at === active} onChoose=${onChoose} />`;
  };
  return html`
    <${Windowed} class="checkpoints" role="listbox" label="Checkpoints, newest first" count=${rows.length} rowHeight=${ROW_HEIGHT} render=${render}
      active=${active} onKeyDown=${onKeyDown} onRange=${(/** @type {number} */ _first, /** @type {number} */ last) => !isWhole && last > rows.length - AHEAD && onEnd()} />`;
}

/** @param {{state: State, parent?: State, lane: Lane, width: number, isLeft: boolean, isNewest: boolean, seconds: number | null, isChosen: boolean, onChoose: (id: string) => void}} props */
function Row({ state, parent, lane, width, isLeft, isNewest, seconds, isChosen, onChoose }) {
  const { names, isNode } = makerOf(state, parent);
  const failed = failedTask(state);
  const questions = questionsOf(state);
  const asks = questions.some(({ isOpen }) => isOpen);
  const keys = (state.metadata?.source ?? "loop") === "loop" ? writtenBy(parent) : [];
  return html`
    <div class=${`checkpoint${isChosen ? " chosen" : ""}${isLeft ? " left" : ""}`} role="option" aria-selected=${isChosen} onClick=${() => onChoose(idOf(state))}>
      <${Lines} lane=${lane} width=${width} kind=${failed ? "error" : asks ? "interrupted" : isNode ? "node" : "source"} />
      <span class="checkpoint-step">${state.metadata?.step ?? ""}</span>
      <span class="checkpoint-what">
        <span class=${isNode ? "checkpoint-node" : "checkpoint-source"}>${plain(names.join(", ").slice(0, 120))}</span>
        ${failed && html` <span class="bad">then ${plain(failed.name.slice(0, 60))} failed</span>`}
        ${questions.slice(0, MOST_QUESTIONS).map(({ name, isOpen }) => html` <span class=${isOpen && isNewest ? "waits" : "quiet"}>then ${plain(name.slice(0, 60))} ${isOpen && isNewest ? "waits for an answer" : "asked"}</span>`)}
        <span class="checkpoint-keys">${keys.slice(0, 6).map((key) => html`<code key=${key}>${plain(key.slice(0, 40))}</code>`)}${keys.length > 6 && ` +${keys.length - 6}`}</span>
      </span>
      <span class="checkpoint-when">${isNode && seconds !== null ? html`<span title="How long its nodes worked">${duration(seconds)}</span>` : ""}<small><${Ago} at=${state.created_at} /></small></span>
    </div>`;
}

/** The part of the branches' drawing that is in one row. @param {{lane: Lane, width: number, kind: string}} props */
function Lines({ lane, width, kind }) {
  const x = (/** @type {number} */ at) => Math.min(at, MOST_LANES - 1) * LANE_WIDTH + LANE_WIDTH / 2;
  const [own, middle] = [x(lane.lane), ROW_HEIGHT / 2];
  return html`
    <svg class="lanes" width=${width} height=${ROW_HEIGHT} aria-hidden="true">
      ${lane.through.map((at) => html`<path key=${at} d=${`M${x(at)} 0V${ROW_HEIGHT}`} />`)}
      ${lane.merges.map((at) => html`<path key=${`m${at}`} d=${`M${x(at)} 0C${x(at)} ${middle} ${own} 0 ${own} ${middle}`} />`)}
      ${lane.hasAbove && html`<path d=${`M${own} 0V${middle}`} />`}
      ${lane.hasBelow && html`<path d=${`M${own} ${middle}V${ROW_HEIGHT}`} />`}
      <circle class=${kind} cx=${own} cy=${middle} r=${kind === "source" ? 3.5 : 4.5} />
    </svg>`;
}
