// Loading the module of a page, which is fetched when the page is first shown. The service may be down at that moment.

import { addressOf, sleep } from "./api.js";

const RETRY_MS = 2_000;
const RELOADED = "runyard.reloaded";

/**
 * Load a module. While the service does not answer, call `onFailure` with the reason and wait until it does. Rejects if
 * `signal` is aborted meanwhile.
 * @param {() => Promise<any>} load @param {AbortSignal} signal @param {(error: Error) => void} onFailure
 */
export async function loadPage(load, signal, onFailure) {
  for (let wasDown = false; ; wasDown = true) {
    try {
      const module = await load();
      sessionStorage.removeItem(RELOADED);
      return module;
    } catch (error) {
      if (await isUp()) return reloadOnce(/** @type {Error} */ (error), wasDown, onFailure);
      onFailure(new Error("This page could not be loaded, because the service does not answer. It appears as soon as the service is back."));
      do await sleep(RETRY_MS, signal); while (!(await isUp()));
    }
  }
}

/**
 * Some browsers remember that a module could not be fetched and do not fetch it again. A reload of the document helps, but not if the module is
 * broken, so the document is reloaded once.
 * @param {Error} error @param {boolean} wasDown whether the service was down before @param {(error: Error) => void} onFailure
 */
function reloadOnce(error, wasDown, onFailure) {
  if (wasDown && !sessionStorage.getItem(RELOADED)) {
    sessionStorage.setItem(RELOADED, "true");
    location.reload();
  }
  onFailure(new Error(`This page could not be loaded: ${error.message}`));
  return new Promise(() => {});
}

async function isUp() {
  try {
    return (await fetch(addressOf("/ok"), { cache: "no-store", credentials: "omit" })).ok;
  } catch {
    return false;
  }
}
