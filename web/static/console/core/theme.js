// Dark or light: as the system is, or as the reader chose; the choice is kept, it is no secret.

import { effect, signal } from "./dom.js";

const KEPT = "runyard.theme";
const THEMES = /** @type {const} */ (["auto", "light", "dark"]);

/** @type {import("../../vendor/signals.js").Signal<"auto" | "light" | "dark">} */
export const theme = signal(THEMES.find((one) => one === localStorage.getItem(KEPT)) ?? "auto");

export function nextTheme() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
  localStorage.setItem(KEPT, theme.value);
}

effect(() => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
});
