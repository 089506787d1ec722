/** Numbers as people read them, in the page's language. */

import { language } from "./i18n.js";

/** @param {number} value @param {Intl.NumberFormatOptions} [options] */
export function number(value, options) {
  return new Intl.NumberFormat(language(), options).format(value);
}

/** A duration in seconds. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const [value, unit] = seconds >= 100 ? [seconds, "s"] : seconds >= 1 ? [seconds, "s"] : seconds >= 0.001 ? [seconds * 1e3, "ms"] : [seconds * 1e6, "µs"];
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${number(value, { maximumFractionDigits: digits })} ${unit}`;
}

/** @param {number} bytes */
export function bytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) {
    bytes /= 1024;
    at += 1;
  }
  return `${number(bytes, { maximumFractionDigits: bytes >= 100 || at === 0 ? 0 : bytes >= 10 ? 1 : 2 })} ${units[at]}`;
}

/** @param {number} value of 1 */
export function percent(value) {
  const digits = value >= 0.1 || value === 0 ? 1 : value >= 0.001 ? 2 : 4;
  return number(value, { style: "percent", maximumFractionDigits: digits });
}

/** @param {number} seconds wall clock */
export function clock(seconds) {
  return new Intl.DateTimeFormat(language(), { hour: "2-digit", minute: "2-digit", second: "2-digit" }).format(seconds * 1000);
}

/** A large count in short: 1.2 K, 3.4 M. @param {number} value */
export function short(value) {
  return number(value, { notation: value >= 10000 ? "compact" : "standard", maximumFractionDigits: 1 });
}

/**
 * Text that shows what cannot be seen: control characters, spaces at the ends, marks that turn writing around.
 * @param {string} text
 */
export function visible(text) {
  let shown = "";
  for (const letter of text) shown += SHOWN[letter] ?? (HIDDEN.test(letter) ? `⟨${(letter.codePointAt(0) ?? 0).toString(16).toUpperCase()}⟩` : letter);
  return shown;
}

/** @type {Record<string, string>} */
const SHOWN = { " ": "·", "\n": "⏎", "\r": "␍", "\t": "⇥" };
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]/u;
