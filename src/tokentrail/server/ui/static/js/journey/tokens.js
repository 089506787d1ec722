/** Tokens as chips: the prompt's with their ids, the answer's shaded by how unlikely they were. */

import { h } from "../dom.js";
import { duration, number, percent, visible } from "../format.js";
import { t } from "../i18n.js";
import { company } from "./model.js";

const PART = 200;

/** Made in parts, so that thousands do not hold up the page. @param {HTMLElement} parent @param {number} count @param {(index: number) => Node | null} make */
function inParts(parent, count, make) {
  let at = 0;
  const more = () => {
    const end = Math.min(count, at + PART);
    const part = document.createDocumentFragment();
    for (; at < end; at += 1) {
      const made = make(at);
      if (made) part.append(made);
    }
    parent.append(part);
    if (at < count) requestAnimationFrame(more);
  };
  more();
}

/** @param {any} sequence */
export function promptTokens(sequence) {
  const pieces = sequence.prompt_pieces ?? [];
  const cached = sequence.cached_tokens ?? 0;
  const list = h("ol.chips", { "aria-label": t("journey.prompt-tokens") });
  inParts(list, pieces.length, (index) => {
    const piece = pieces[index];
    const chip = h("li.chip", null, h("span.chip-text", { dir: "auto" }, visible(piece.text)), h("span.chip-id", null, String(piece.id)));
    if (index < cached) {
      chip.classList.add("cached");
      chip.append(h("span.unseen", null, t("journey.cached")));
    }
    return chip;
  });
  return list;
}

/**
 * @param {any} sequence @param {number[]} steps index of the step of each token
 * @param {(index: number) => void} chosen
 */
export function answerTokens(sequence, steps, chosen) {
  const { tokens } = sequence;
  const list = h("div.answer-tokens.wrap", { role: "listbox", "aria-label": t("journey.answer-tokens"), tabindex: "0", dir: "auto", "aria-describedby": "token-keys" });
  let current = -1;
  let shown = tokens.length;
  /** @type {HTMLElement[]} */
  const elements = [];
  // A line is an element of its own, so that what is added to the next ones does not lay it out again.
  const nextLine = () => h("div.token-line", { role: "none" });
  let line = nextLine();
  list.append(line);
  inParts(list, tokens.length, (index) => {
    const token = tokens[index];
    const p = Math.exp(token.logprob);
    const text = token.text ?? String(index + 1);
    const element = h("span.token", { role: "option", id: `token-${index}`, "aria-selected": "false", "data-index": index, title: `${percent(p)}` }, token.text === undefined ? text : printed(text));
    element.classList.toggle("bare", token.text === undefined);
    element.style.setProperty("--doubt-part", String(Math.round((1 - p) ** 1.4 * 62) / 100));
    element.classList.toggle("unborn", index >= shown);
    elements[index] = element;
    line.append(element);
    return (token.text ?? "").endsWith("\n") ? (line = nextLine()) : null;
  });
  const choose = (/** @type {number} */ index, scroll = false) => {
    if (index < 0 || index >= tokens.length || !elements[index]) return;
    elements[current]?.setAttribute("aria-selected", "false");
    current = index;
    elements[current].setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", `token-${index}`);
    if (scroll) elements[current].scrollIntoView({ block: "nearest" });
    chosen(index);
  };
  list.addEventListener("click", (/** @type {any} */ event) => {
    const found = event.target.closest(".token");
    if (found) choose(Number(found.dataset.index));
  });
  list.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(tokens.length - 1, current + by)), true);
  });
  return {
    element: list,
    choose,
    /** Show only what had come by then. @param {number | null} count null: all */
    upTo(count) {
      const now = count ?? tokens.length;
      for (let index = Math.min(shown, now); index < Math.max(shown, now); index += 1) elements[index]?.classList.toggle("unborn", index >= now);
      shown = now;
    },
  };
}

/** As it stands in the text; what nobody could see is made visible. @param {string} text */
function printed(text) {
  return /^[\s\p{C}]+$/u.test(text) && text !== " " ? visible(text) : text.replace(/\n+$/, (end) => "⏎".repeat(end.length)).replace(/[\p{Cc}\p{Cf}]/gu, (letter) => (letter === "\n" || letter === "\u200d" ? letter : visible(letter)));
}

/**
 * What is known of one token.
 * @param {any} journey @param {any} sequence @param {number} index @param {number} step index of its step
 */
export function tokenDetails(journey, sequence, index, step) {
  const token = sequence.tokens[index];
  const before = sequence.tokens[index - 1];
  const its = sequence.steps[step];
  const { own, others } = company(sequence, step);
  const p = Math.exp(token.logprob);
  return h("div.token-details", null,
    h("div.token-head", null, h("span.chip-text.large", { dir: "auto" }, token.text === undefined ? t("journey.token-number", { number: index + 1 }) : visible(token.text)),
      token.id === undefined ? null : h("span.muted.small", null, t("journey.token-id", { id: token.id }))),
    h("dl.figures", null,
      figure(t("journey.probability"), percent(p), t("journey.logprob", { value: number(token.logprob, { maximumFractionDigits: 3 }) })),
      figure(t("journey.came"), duration(token.at - journey.received_at), before ? t("journey.after-last", { time: duration(token.at - before.at) }) : t("journey.first")),
      its ? figure(t("journey.step"), number(its.step), t("journey.step-took", { time: duration(its.seconds), forward: duration(its.forward_seconds), sample: duration(its.sample_seconds) })) : null,
      its ? figure(t("journey.blocks"), number(its.blocks), t("journey.blocks-all", { count: number(its.blocks_used) })) : null,
      its?.drafted_tokens ? figure(t("journey.drafted"), `${its.accepted_tokens}/${its.drafted_tokens}`, t("journey.drafted-right")) : null),
    its ? h("p.small", null, t("journey.batch", { sequences: its.batch_sequences, tokens: its.batch_tokens }), " ",
      own.length ? [t("journey.with"), " ", own.slice(0, 12).map((/** @type {any} */ one, /** @type {number} */ k) => [k ? ", " : "", one.journey === journey.id ? t("journey.choice", { number: one.sequence + 1 }) : h("a.mono", { href: `#/journey/${encodeURIComponent(one.journey)}` }, one.journey.slice(-8))])] : null,
      others ? ` ${t("journey.others", { count: others })}` : null) : null,
    alternatives(token));
}

/** @param {any} token */
function alternatives(token) {
  if (!token.top?.length) return h("p.hint", null, t("journey.no-alternatives"));
  const all = token.top.some((/** @type {any} */ one) => one.id === token.id) ? token.top : [...token.top, { id: token.id, text: token.text, logprob: token.logprob }];
  return h("table.alternatives", null, h("caption.unseen", null, t("journey.alternatives")),
    h("thead", null, h("tr", null, h("th", { scope: "col" }, t("journey.alternatives")), h("th", { scope: "col" }, h("span.unseen", null, t("journey.probability"))), h("th.number", { scope: "col" }, "%"))),
    h("tbody", null, all.map((/** @type {any} */ one) => {
      const p = Math.exp(one.logprob);
      const bar = h("div.share", { "aria-hidden": "true" });
      bar.style.inlineSize = `${p * 100}%`;
      const row = h("tr", null, h("td", null, h("span.chip-text", { dir: "auto" }, visible(one.text ?? String(one.id)))), h("td.share-cell", null, bar), h("td.number", null, percent(p)));
      row.classList.toggle("drawn", one.id === token.id);
      return row;
    })));
}

/** @param {string} name @param {string} value @param {string} more */
function figure(name, value, more) {
  return h("div", null, h("dt", null, name), h("dd", null, value, " ", h("small", null, more)));
}
