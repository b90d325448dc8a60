// The colour theme: that of the system, or one that the reader chose. Local storage keeps the choice.

import { effect, signal } from "./dom.js";

const STORED = "runyard.theme";

/** @typedef {"auto" | "light" | "dark"} Theme */
/** @type {{value: Theme, label: string, icon: "system" | "light" | "dark"}[]} */
export const THEMES = [
  { value: "auto", label: "System", icon: "system" },
  { value: "light", label: "Light", icon: "light" },
  { value: "dark", label: "Dark", icon: "dark" },
];

/** @type {import("../../vendor/signals.js").Signal<Theme>} */
export const theme = signal(THEMES.find(({ value }) => value === localStorage.getItem(STORED))?.value ?? "auto");

/** Choose a theme. @param {Theme} value */
export function setTheme(value) {
  theme.value = value;
  localStorage.setItem(STORED, value);
}

effect(() => {
  if (theme.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
});
