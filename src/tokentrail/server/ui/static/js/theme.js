/** Light or dark: as the system has it, until the reader chooses. */

import { keep, keptIn } from "./i18n.js";

const KEPT = "tokentrail.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function startTheme() {
  apply();
  system.addEventListener("change", apply);
}

export function isDark() {
  const kept = keptIn(KEPT);
  return kept === null ? system.matches : kept === "dark";
}

export function switchTheme() {
  keep(KEPT, isDark() ? "light" : "dark");
  apply();
}

function apply() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}
