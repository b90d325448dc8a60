// The command palette: search and go to anything with the keyboard. Ctrl+K or Cmd+K opens it.

import { currentDeployment } from "../core/deployments.js";
import { html, signal, useEffect, useId, useMemo, useState } from "../core/dom.js";
import { ranked } from "../core/fuzzy.js";
import { recent } from "../core/recent.js";
import { useResource } from "../core/resource.js";
import { href, location_ } from "../core/router.js";
import { useModal } from "./dialog.js";
import { Icon } from "./icons.js";
import { actionItems, deploymentItems, loadById, loadDeployments, loadObjects, pageItems, searchable, searched } from "./palette_sources.js";

/** @typedef {import("./palette_sources.js").Item} Item */
/** @typedef {{item: Item, ranges: [number, number][]}} Result */

const MOST_OF_A_GROUP = 6;
const MOST_RECENT = 5;
const RECENT_BONUS = 40;
const PAGE_ROWS = 5;

const isOpen = signal(false);

export const openPalette = () => void (isOpen.value = true);

/** @param {{routes: import("../main.js").Route[]}} props */
export function Palette({ routes }) {
  useEffect(() => {
    const toggle = (/** @type {KeyboardEvent} */ event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      isOpen.value = !isOpen.peek() && !document.querySelector("dialog[open]");
    };
    addEventListener("keydown", toggle);
    return () => removeEventListener("keydown", toggle);
  }, []);
  const { path } = location_.value;
  useEffect(() => void (isOpen.value = false), [path]);
  return isOpen.value ? html`<${OpenPalette} routes=${routes} />` : null;
}

/** @param {{routes: import("../main.js").Route[]}} props */
function OpenPalette({ routes }) {
  const dialog = useModal(true);
  const id = useId();
  const [query, setQuery] = useState("");
  const [active, setActive] = useState(0);
  const { items, isLoading, error } = useItems(routes, query);
  const groups = useMemo(() => groupsOf(query, items), [query, items]);
  const results = groups.flatMap(({ results }) => results);
  const at = Math.min(active, results.length - 1);

  useEffect(() => document.getElementById(`${id}-${at}`)?.scrollIntoView({ block: "nearest" }), [at]);

  const close = () => void (isOpen.value = false);
  const choose = (/** @type {Result | undefined} */ result) => {
    if (!result) return;
    close();
    const { address, act } = result.item;
    if (address) location.hash = address;
    act?.();
  };
  const press = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: PAGE_ROWS, PageUp: -PAGE_ROWS }[event.key];
    if (event.key === "Enter" && !event.isComposing) choose(results[at]);
    else if (!step || !results.length) return;
    else if (Math.abs(step) === 1) setActive((at + step + results.length) % results.length);
    else setActive(Math.max(0, Math.min(results.length - 1, at + step)));
    event.preventDefault();
  };
  const type = (/** @type {any} */ event) => {
    setQuery(event.currentTarget.value);
    setActive(0);
  };
  let index = -1;
  return html`
    <dialog ref=${dialog} class="palette" aria-label="Search" onCancel=${(/** @type {Event} */ event) => (event.preventDefault(), close())} onMouseDown=${(/** @type {Event} */ event) => event.target === dialog.current && close()}>
      <div class="palette-search">
        <${Icon} name="search" />
        <input type="text" role="combobox" aria-label="Search deployments, threads, runs, assistants, pages and actions" placeholder="Search, or paste an id" autocomplete="off" spellcheck=${false} autofocus
          aria-expanded=${String(results.length > 0)} aria-controls=${`${id}-list`} aria-autocomplete="list" aria-activedescendant=${at >= 0 ? `${id}-${at}` : undefined}
          value=${query} onInput=${type} onKeyDown=${press} />
        <button type="button" class="plain" aria-label="Close" onClick=${close}><${Icon} name="close" /></button>
      </div>
      <div class="palette-list" id=${`${id}-list`} role="listbox" aria-label="Results">
        ${groups.map(({ name, results: some }) => html`
          <div key=${name} role="group" aria-labelledby=${`${id}-${name}`}>
            <div class="palette-group" id=${`${id}-${name}`} role="presentation">${name}</div>
            ${some.map((result) => {
              const here = ++index;
              return html`<div key=${result.item.address ?? result.item.label} id=${`${id}-${here}`} class="palette-option" role="option" aria-selected=${String(here === at)}
                onMouseMove=${() => here !== at && setActive(here)} onClick=${() => choose(result)}><${Icon} name=${result.item.icon} /><${Label} result=${result} />${result.item.hint && html`<span class="palette-hint">${result.item.hint}</span>`}</div>`;
            })}
          </div>`)}
      </div>
      <p class=${results.length && !error ? "unseen" : "palette-note"} role="status">${noteOf(results.length, isLoading, error)}</p>
      <div class="palette-foot" aria-hidden="true"><span><kbd>↑</kbd> <kbd>↓</kbd> to move</span><span><kbd>Enter</kbd> to open</span><span><kbd>Esc</kbd> to close</span></div>
    </dialog>`;
}

/** @param {number} count @param {boolean} isLoading @param {any} error */
function noteOf(count, isLoading, error) {
  if (error) return `Cannot search deployments: ${error.detail ?? error}`;
  if (count) return `${count} ${count === 1 ? "result" : "results"}`;
  return isLoading ? "Searching…" : "Nothing matches. Threads and runs are searched among the latest, or by their whole id.";
}

/**
 * All items that the query is matched with. Threads, runs and assistants are loaded once for each opening: those of the open deployment
 * at once, those of some deployments when the reader types.
 * @param {import("../main.js").Route[]} routes @param {string} query
 */
function useItems(routes, query) {
  const { params } = location_.value;
  const deployments = useResource(loadDeployments, []);
  const all = deployments.data ?? [];
  const current = params.name ?? all.find(({ id }) => id === params.id)?.name;
  const open = currentDeployment.value;
  const allowed = searchable(open && !all.some(({ id }) => id === open.id) ? [...all, open] : all);
  const names = current || query.length > 1 ? searched(allowed, current) : [];
  const objects = useResource((signal) => loadObjects(names, signal), [names.join()]);
  const byId = useResource((signal) => loadById(query, allowed.slice(0, 20), signal), [query.length >= 36 ? query : "", all.length]);
  const items = useMemo(() => {
    const pagesOf = query ? all : all.filter(({ name }) => name === current);
    const loaded = new Map([...(byId.data ?? []), ...(objects.data ?? [])].map((item) => [item.address, item]));
    return [...deploymentItems(all), ...pageItems(routes, pagesOf), ...loaded.values(), ...actionItems()];
  }, [deployments.data, objects.data, byId.data, Boolean(query), current]);
  return { items, isLoading: deployments.loading || objects.loading || byId.loading, error: deployments.error };
}

/**
 * The results in groups. Without a query: the pages visited lately, then pages, deployments and actions. With one: the groups by their best result.
 * @param {string} query @param {Item[]} items
 * @returns {{name: string, results: Result[]}[]}
 */
export function groupsOf(query, items) {
  const here = href(location_.peek().path);
  const visits = recent.peek().filter(({ address }) => address !== here);
  const visited = new Map(visits.map(({ address }, index) => [address, RECENT_BONUS - index]));
  const known = new Set(items.map(({ address }) => address));
  const others = visits.filter(({ address }) => !known.has(address)).map(({ address, title }) => ({ group: "Recent", label: title, icon: "clock", address }));
  /** @type {Map<string, Result[]>} */
  const groups = new Map();
  const add = (/** @type {string} */ name, /** @type {Result} */ result, most = MOST_OF_A_GROUP) => {
    const group = groups.get(name) ?? groups.set(name, []).get(name);
    if (group && group.length < most) group.push(result);
  };
  if (query.trim()) for (const result of ranked(query, [...items, ...others], ({ address }) => visited.get(address ?? "") ?? 0)) add(result.item.group, result);
  else {
    for (const { address, title } of visits.slice(0, MOST_RECENT)) add("Recent", { item: { group: "Recent", label: title, icon: "clock", address }, ranges: [] });
    for (const group of ["Pages", "Deployments", "Actions"]) for (const item of items) if (item.group === group) add(group, { item, ranges: [] }, group === "Pages" ? 20 : MOST_OF_A_GROUP);
  }
  return [...groups].map(([name, results]) => ({ name, results }));
}

/** A label with the letters that match. @param {{result: Result}} props */
function Label({ result: { item: { label }, ranges } }) {
  const parts = [];
  let at = 0;
  for (const [from, to] of ranges) {
    parts.push(label.slice(at, from), html`<mark>${label.slice(from, to)}</mark>`);
    at = to;
  }
  return html`<span class="palette-label">${parts}${label.slice(at)}</span>`;
}
