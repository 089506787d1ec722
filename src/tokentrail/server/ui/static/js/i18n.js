/** The page's words in the reader's language. */

import en from "./i18n/en.js";
import zh from "./i18n/zh.js";

/** @typedef {"en" | "zh"} Language */

const WORDS = { en, zh };
const KEPT = "tokentrail.language";
/** @type {Language} */
let current = "en";

/** As last chosen, else as the browser prefers. */
export function startLanguage() {
  const kept = keptIn(KEPT);
  const wished = kept ?? (navigator.languages ?? [navigator.language])[0] ?? "en";
  apply(wished.toLowerCase().startsWith("zh") ? "zh" : "en");
}

/** @param {Language} language */
export function chooseLanguage(language) {
  keep(KEPT, language);
  apply(language);
}

/** @param {Language} language */
function apply(language) {
  current = language;
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
}

/** For `Intl`. */
export function language() {
  return current === "zh" ? "zh-CN" : "en";
}

/** @returns {Language} */
export function currentLanguage() {
  return current;
}

/**
 * A sentence of the page; `{name}` in it is replaced, and `{name|one|many}` by the word that fits the number.
 * @param {keyof typeof en} key
 * @param {Record<string, string | number>} [values]
 * @returns {string}
 */
export function t(key, values) {
  const text = WORDS[current][key] ?? en[key] ?? key;
  return values === undefined ? text : text.replace(/\{(\w+)(?:\|([^|}]*)\|([^|}]*))?\}/g, (whole, name, one, many) =>
    one === undefined ? String(values[name] ?? whole) : String(values[name]) === "1" ? one : many);
}

/** Local storage may be refused to a page: then choices last as long as it. @param {string} name */
export function keptIn(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

/** @param {string} name @param {string} value */
export function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Not kept.
  }
}
