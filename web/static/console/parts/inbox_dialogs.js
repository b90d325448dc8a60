// Dialogs of the inbox: assign, snooze, links for one answer, keyboard shortcuts.

import { control } from "../core/api.js";
import { html, useState } from "../core/dom.js";
import { plain } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { isAnswerable, linkState, localInput, snoozeTimes } from "./inbox.js";
import { Ago, Button, Copy, Dialog, ErrorBox, Field, Loading, Pill, Select, TextField } from "./index.js";
import { FormDialog, useForm } from "./form_dialog.js";

/** @typedef {import("./inbox.js").Question} Question */
/** @typedef {(changes: {assignee?: string | null, snoozed_until?: string | null}) => Promise<void>} Change */

/** @param {{assignee: string | null, names: string[], onChange: Change, onClose: () => void}} props */
export function AssignDialog({ assignee, names, onChange, onClose }) {
  const form = useForm({ name: assignee ?? "" });
  return html`<${FormDialog} title="Assign" label="Assign" onClose=${onClose} onSubmit=${() => onChange({ assignee: form.values.name.trim() || null })}>
    ${(/** @type {any} */ errorOf) => html`
      <${Field} label="Assignee" hint="A name or an address. Leave it empty to assign the question to nobody." error=${errorOf("assignee")}>
        <input type="text" list="inbox-names" autocomplete="off" autofocus maxlength="200" value=${form.values.name}
          onInput=${(/** @type {any} */ event) => form.set({ name: event.currentTarget.value })} />
      <//>
      <datalist id="inbox-names">${names.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>`}
  <//>`;
}

/** @param {{isSnoozed: boolean, onChange: Change, onClose: () => void}} props */
export function SnoozeDialog({ isSnoozed, onChange, onClose }) {
  const now = new Date();
  const [time, setTime] = useState(() => localInput(snoozeTimes(now)[2].at));
  const until = async (/** @type {Date | null} */ at) => {
    await onChange({ snoozed_until: at && at.toISOString() });
    onClose();
  };
  const isValid = new Date(time).getTime() > now.getTime();
  return html`<${Dialog} title="Snooze" open=${true} onClose=${onClose}>
    <p>A snoozed question leaves the list of open questions until the time that you choose.</p>
    <div class="actions inbox-times">
      ${snoozeTimes(now).map(({ label, at }) => html`<${Button} key=${label} title=${at.toLocaleString()} onClick=${() => until(at)}>${label}<//>`)}
      ${isSnoozed && html`<${Button} onClick=${() => until(null)}>Wake now<//>`}
    </div>
    <div class="form-row">
      <${TextField} label="Until" type="datetime-local" value=${time} onInput=${setTime} error=${time && !isValid ? "Choose a time in the future." : undefined} />
      <${Button} kind="primary" disabled=${!isValid} onClick=${() => until(new Date(time))}>Snooze<//>
    </div>
  <//>`;
}

const LIFETIMES = [
  { value: "3600", label: "1 hour" },
  { value: "86400", label: "1 day" },
  { value: "604800", label: "7 days" },
  { value: "2592000", label: "30 days" },
];

/** @param {{question: Question, onClose: () => void}} props */
export function LinkDialog({ question, onClose }) {
  const path = `/v2/inbox/${encodeURIComponent(question.id)}`;
  const { data, error, reload } = useResource((signal) => control("GET", `${path}/links`, { signal }), [question.id]);
  const [label, setLabel] = useState("");
  const [lifetime, setLifetime] = useState("604800");
  const [created, setCreated] = useState(/** @type {{url: string, expires_at: string} | null} */ (null));
  const create = async () => {
    setCreated(await control("POST", `${path}/link`, { body: { expires_in_seconds: Number(lifetime), label: label.trim() || null } }));
    setLabel("");
    reload();
  };
  const links = data?.resources ?? data ?? [];
  return html`<${Dialog} title="Links for one answer" open=${true} onClose=${onClose} wide>
    <p>Anyone with a link can see this question and answer it once, without an account. The link shows nothing else of the thread.</p>
    <div class="form-row">
      <${TextField} label="Label" placeholder="For whom the link is" value=${label} onInput=${setLabel} />
      <div class="field"><${Select} label="Valid for" value=${lifetime} options=${LIFETIMES} onChange=${setLifetime} /></div>
      <${Button} kind="primary" onClick=${create}>Create a link<//>
    </div>
    ${created && html`<div class="notice" role="status">
      <p>Copy the link now. It is shown only once, and expires <${Ago} at=${created.expires_at} />.</p>
      <div class="inbox-url"><input type="text" readonly aria-label="New link" value=${created.url} onFocus=${(/** @type {any} */ event) => event.currentTarget.select()} /><${Copy} text=${created.url} /></div>
    </div>`}
    <${ErrorBox} error=${error} retry=${reload} />
    ${!data && !error && html`<${Loading} />`}
    ${links.length > 0 && html`<ul class="plain-list inbox-links" aria-label="Links of this question">
      ${links.map((/** @type {any} */ link) => html`<${LinkRow} key=${link.id} link=${link} isOpen=${isAnswerable(question)} onDone=${reload} />`)}
    </ul>`}
  <//>`;
}

/** @param {{link: any, isOpen: boolean, onDone: () => void}} props */
function LinkRow({ link, isOpen, onDone }) {
  const state = linkState(link, isOpen);
  const revoke = async () => {
    await control("DELETE", `/v2/inbox/links/${encodeURIComponent(link.id)}`);
    onDone();
  };
  return html`<li>
    <${Pill} status=${state} /> <b>${plain(link.label || "No label")}</b>
    <span class="quiet"> created <${Ago} at=${link.created_at} />${link.created_by ? ` by ${plain(link.created_by)}` : ""},
      ${state === "used" ? html` used <${Ago} at=${link.used_at} />` : state === "revoked" ? html` revoked <${Ago} at=${link.revoked_at} />` : state === "closed" ? " its question is closed" : html` ${state === "expired" ? "expired" : "expires"} <${Ago} at=${link.expires_at} />`}</span>
    ${state === "active" && html` <${Button} kind="plain" onClick=${revoke} label=${`Revoke ${link.label || link.id}`}>Revoke<//>`}
  </li>`;
}

const KEYS = [
  ["j / k", "Next or previous question"],
  ["Enter", "Go to the answer form"],
  ["Ctrl+Enter", "Send the answer"],
  ["Escape", "Leave the form"],
  ["x", "Select the question for an answer to several"],
  ["a", "Assign the question to you, or to nobody if it is yours"],
  ["A", "Assign the question to somebody"],
  ["s", "Snooze the question"],
  ["l", "Links for one answer"],
  ["t", "Open the thread"],
  ["?", "Show these keys"],
];

/** @param {{onClose: () => void}} props */
export function KeysDialog({ onClose }) {
  return html`<${Dialog} title="Keyboard shortcuts" open=${true} onClose=${onClose}>
    <dl class="facts inbox-keys">${KEYS.map(([key, text]) => html`<dt key=${key}><kbd>${key}</kbd></dt><dd>${text}</dd>`)}</dl>
  <//>`;
}
