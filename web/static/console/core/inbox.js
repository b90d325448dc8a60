// The number of open questions in the inbox, for the navigation.

import { control } from "./api.js";
import { effect, signal } from "./dom.js";
import { me } from "./session.js";

const POLL_MS = 5_000;

/** The number of open questions; null until the service has answered. @type {import("../../vendor/signals.js").Signal<number | null>} */
export const openQuestions = signal(null);

let isLoading = false;

/** Load the number again. A failed call keeps the last number; the next poll repeats it. */
export async function countOpenQuestions() {
  if (isLoading || document.hidden || !me.peek()) return;
  isLoading = true;
  try {
    openQuestions.value = (await control("GET", "/v2/inbox", { query: { limit: 0 } })).total;
  } catch {
    // The page that the user looks at reports that the service is unreachable.
  } finally {
    isLoading = false;
  }
}

/** Poll while the tab is visible. Returns a function that stops it. */
export function followOpenQuestions() {
  const forget = effect(() => {
    openQuestions.value = null; // another caller starts with an unknown number
    if (me.value) void countOpenQuestions();
  });
  const timer = setInterval(countOpenQuestions, POLL_MS);
  document.addEventListener("visibilitychange", countOpenQuestions);
  return () => {
    forget();
    clearInterval(timer);
    document.removeEventListener("visibilitychange", countOpenQuestions);
  };
}
