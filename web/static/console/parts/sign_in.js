// The sign-in page: with the provider that the service uses, or with an API key.

import { html, useEffect, useState } from "../core/dom.js";
import { addressOfSignIn, findProvider, isDev, provider, refusal, signIn, start } from "../core/session.js";
import { Button, TextField } from "./forms.js";

const HINT = "The key stays in this tab until you close it or sign out. It is sent to this service only. Create one with: runyard keys create --name NAME --role admin";

export function SignIn() {
  const [typed, setTyped] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [usesKey, setUsesKey] = useState(false);
  const found = provider.value;
  useEffect(() => void findProvider(), []);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!typed.trim()) return;
    setBusy(true);
    await signIn(typed);
    setBusy(false);
    setTyped("");
  };
  return html`
    <main class="sign-in">
      <form onSubmit=${submit}>
        <h1>runyard</h1>
        ${refusal.value && html`<p class="error-box" role="alert">${refusal.value}</p>`}
        ${found && !usesKey ? withProvider(found) : withKey()}
      </form>
    </main>`;

  /** @param {import("../core/session.js").Provider} found */
  function withProvider(found) {
    return html`<div class="actions">
      <${Button} kind="plain" onClick=${() => setUsesKey(true)}>Use an API key<//>
      <${Button} kind="primary" onClick=${() => location.assign(addressOfSignIn(found))}>Sign in with ${found.label}<//>
    </div>`;
  }

  function withKey() {
    return html`
      <${TextField} label="API key" type="password" value=${typed} onInput=${setTyped} required=${true} autofocus=${true} hint=${HINT} />
      <div class="actions">
        ${isDev && html`<${Button} onClick=${start}>Without a key<//>`}
        ${found && html`<${Button} kind="plain" onClick=${() => setUsesKey(false)}>Sign in with ${found.label}<//>`}
        <${Button} kind="primary" type="submit" busy=${isBusy}>Sign in<//>
      </div>`;
  }
}
