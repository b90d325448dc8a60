// Confirms the sign-in of a command line: `runyard login` shows a code, and the signed-in person approves it here.

import { control } from "../core/api.js";
import { html, useEffect, useState } from "../core/dom.js";
import { me, signOut } from "../core/session.js";
import { Ago, Button, Empty, ErrorBox, Page, TextField } from "../parts/index.js";

export const title = () => "Command line sign-in";

/** @param {{query: Record<string, string>}} props */
export default function DevicePage({ query }) {
  const [code, setCode] = useState(query.code ?? "");
  const [login, setLogin] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [outcome, setOutcome] = useState("");
  const person = me.value?.user;
  const find = async () => {
    setError(null);
    setLogin(null);
    try {
      setLogin(await control("GET", "/v2/sign-in/device", { query: { user_code: code } }));
    } catch (failure) {
      setError(failure);
    }
  };
  const answer = async (/** @type {boolean} */ approve) => {
    try {
      await control("POST", "/v2/sign-in/device/answer", { body: { user_code: code, approve } });
      setOutcome(approve ? "The command line is signed in. You can return to it." : "The request was refused. The command line gets no key.");
    } catch (failure) {
      setError(failure);
    }
    setLogin(null);
  };
  useEffect(() => {
    if (person && query.code) void find();
  }, []);
  return html`<${Page} title="Command line sign-in">${content()}<//>`;

  function content() {
    if (!person) {
      return html`<${Empty} title="Sign in first" text="You use an API key in this tab. Only a person who has signed in can confirm a command line."
        action=${html`<${Button} kind="primary" onClick=${() => signOutAndStay()}>Sign in<//>`} />`;
    }
    if (outcome) return html`<p role="status">${outcome}</p>`;
    return html`
      <form onSubmit=${submit}>
        <p>Enter the code that <code>runyard login</code> shows. Continue only if you have started it yourself.</p>
        <${TextField} label="Code" value=${code} onInput=${changeCode} placeholder="BCDF-GHJK" required=${true} autofocus=${true} />
        <${ErrorBox} error=${error} />
        ${login ? confirmation() : html`<div class="actions"><${Button} kind="primary" type="submit">Continue<//></div>`}
      </form>`;
  }

  function confirmation() {
    return html`
      <div role="group" aria-label="Request">
        <p><b>${login.device}</b> at the address <b>${login.address}</b> requests an API key. It will have your role, <b>${me.value?.role}</b>. The request expires <${Ago} at=${login.expires_at} />.</p>
        <p class="quiet">Compare the code with the one in your terminal. Somebody else may have sent you this link to get a key in your name.</p>
        <div class="actions">
          <${Button} onClick=${() => answer(false)}>Refuse<//>
          <${Button} kind="primary" onClick=${() => answer(true)}>Approve<//>
        </div>
      </div>`;
  }

  /** @param {string} text */
  function changeCode(text) {
    setCode(text);
    setLogin(null);
  }

  /** @param {Event} event */
  function submit(event) {
    event.preventDefault();
    if (code.trim()) void find();
  }
}

/** Forget the key; the sign-in page returns to this page. */
function signOutAndStay() {
  signOut();
  location.reload();
}
