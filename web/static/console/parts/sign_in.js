// Asks for the key.

import { html, useState } from "../core/dom.js";
import { isDev, refusal, signIn, start } from "../core/session.js";
import { Button, TextField } from "./forms.js";

export function SignIn() {
  const [typed, setTyped] = useState("");
  const [isBusy, setBusy] = useState(false);
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
        <${TextField} label="API key" type="password" value=${typed} onInput=${setTyped} required=${true} autofocus=${true}
          hint="It stays in this tab until you close it or sign out, and is sent to this service alone. Make one with: runyard keys create --name NAME --role admin" />
        <div class="actions">
          ${isDev && html`<${Button} onClick=${start}>Without a key<//>`}
          <${Button} kind="primary" type="submit" busy=${isBusy}>Sign in<//>
        </div>
      </form>
    </main>`;
}
