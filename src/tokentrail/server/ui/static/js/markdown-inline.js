/** Emphasis, code and links within a block, in one pass: marks that nothing closes are looked for once, not each time. */

import { h } from "./dom.js";

const MARKS = /[`*_~[\\<h\n]/g;
const LINK = /\[([^\]\n]{1,500})\]\(\s*<?([^\s)>]{1,2000})>?(?:\s+"[^"\n]{0,300}")?\s*\)/y;
const BARE = /https?:\/\/[^\s<>"'`)\]]{1,2000}/y;
const ANGLED = /<(https?:\/\/[^\s<>]{1,2000}|mailto:[^\s<>]{1,500})>/y;
const MOST_DEEP = 6;

/** @param {string} text @returns {(Node | string)[]} */
export function inline(text) {
  return run(text, 0);
}

/** @param {string} text @param {number} depth @returns {(Node | string)[]} */
function run(text, depth) {
  /** @type {(Node | string)[]} */
  const made = [];
  /** @type {Set<string>} marks that no later one closes */
  const unclosed = new Set();
  let plain = 0;
  const put = (/** @type {number} */ from, /** @type {number} */ to, /** @type {any} */ node) => {
    if (from > plain) made.push(text.slice(plain, from));
    if (node !== null) made.push(node);
    plain = to;
  };
  let at = 0;
  while (at < text.length) {
    MARKS.lastIndex = at;
    const found = MARKS.exec(text);
    if (found === null) break;
    at = found.index;
    const sign = found[0];
    if (sign === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      put(at, at + 1, null);
      at += 2;
    } else if (sign === "\n") {
      put(at, at + 1, h("br"));
      at += 1;
    } else if (sign === "`") {
      const mark = repeated(text, at, "`");
      const end = unclosed.has(mark) ? -1 : closing(text, at + mark.length, mark);
      if (end < 0) {
        unclosed.add(mark);
        at += mark.length;
      } else {
        put(at, end + mark.length, h("code", { dir: "ltr" }, text.slice(at + mark.length, end).trim() || " "));
        at = plain;
      }
    } else if (sign === "[" || sign === "<" || sign === "h") {
      const link = sign === "[" ? match(LINK, text, at) : sign === "<" ? match(ANGLED, text, at) : wordBefore(text, at) ? null : match(BARE, text, at);
      if (link === null) {
        at += 1;
      } else {
        const bare = sign === "h" ? link[0].replace(/[.,;:!?]+$/, "") : link[0];
        const href = sign === "[" ? link[2] : sign === "<" ? link[1] : bare;
        const shown = sign === "[" && depth < MOST_DEEP ? run(link[1], depth + 1) : [sign === "[" ? link[1] : href];
        put(at, at + bare.length, /^(https?:|mailto:)/i.test(href) ? h("a", { href, target: "_blank", rel: "noopener noreferrer" }, shown) : h("span", null, shown));
        at = plain;
      }
    } else {
      const mark = repeated(text, at, sign).slice(0, sign === "~" ? 2 : 3);
      const tag = sign === "~" ? (mark.length === 2 ? "s" : "") : mark.length === 2 ? "strong" : "em";
      const opens = tag !== "" && /\S/.test(text[at + mark.length] ?? "") && !(sign === "_" && wordBefore(text, at));
      const end = !opens || unclosed.has(mark) || depth >= MOST_DEEP ? -1 : closing(text, at + mark.length, mark);
      if (end < 0) {
        if (opens) unclosed.add(mark);
        at += mark.length;
      } else {
        const within = run(text.slice(at + mark.length, end), depth + 1);
        put(at, end + mark.length, mark.length === 3 ? h("strong", null, h("em", null, within)) : h(tag, null, within));
        at = plain;
      }
    }
  }
  if (plain < text.length) made.push(text.slice(plain));
  return made;
}

/** @param {RegExp} sticky @param {string} text @param {number} at */
function match(sticky, text, at) {
  sticky.lastIndex = at;
  return sticky.exec(text);
}

/** @param {string} text @param {number} at @param {string} sign */
function repeated(text, at, sign) {
  let end = at;
  while (text[end] === sign) end += 1;
  return text.slice(at, end);
}

/** Where the same mark stands alone, behind something that is no space. @param {string} text @param {number} from @param {string} mark */
function closing(text, from, mark) {
  const sign = mark[0];
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at)) {
    let end = at + mark.length;
    while (text[end] === sign) end += 1;
    const alone = end - at === mark.length && text[at - 1] !== sign;
    const fits = sign === "`" || (/\S/.test(text[at - 1] ?? " ") && !(sign === "_" && /[\p{L}\p{N}]/u.test(text[end] ?? "")));
    if (alone && fits && at > from) return at;
    at = end;
  }
  return -1;
}

/** @param {string} text @param {number} at */
function wordBefore(text, at) {
  return at > 0 && /[\p{L}\p{N}]/u.test(text[at - 1]);
}
