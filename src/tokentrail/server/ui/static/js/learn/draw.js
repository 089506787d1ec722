/** One token at a time: from logits through each knob to the draw. */

import { json } from "../api.js";
import { fill, h, uid } from "../dom.js";
import { number, percent, visible } from "../format.js";
import { t } from "../i18n.js";
import { later } from "./later.js";

const STAGES = ["logits", "penalties", "temperature", "min_p", "top_k", "top_p"];
/** Each stands above the stage that it turns. */
const KNOBS = [
  { name: "repetition_penalty", stage: "penalties", min: 0.5, max: 2, step: 0.05, value: 1 },
  { name: "frequency_penalty", stage: "penalties", min: -2, max: 2, step: 0.1, value: 0 },
  { name: "presence_penalty", stage: "penalties", min: -2, max: 2, step: 0.1, value: 0 },
  { name: "temperature", stage: "temperature", min: 0, max: 2, step: 0.05, value: 1 },
  { name: "min_p", stage: "min_p", min: 0, max: 0.5, step: 0.01, value: 0 },
  { name: "top_k", stage: "top_k", min: 0, max: 50, step: 1, value: 0 },
  { name: "top_p", stage: "top_p", min: 0.05, max: 1, step: 0.01, value: 1 },
];
const SHOWN = 14;
/** Pixels that a letter takes at most, about. */
const LETTER = 8;

/** @param {import("../main.js").App} app @param {AbortSignal} ended */
export function drawLesson(app, ended) {
  /** @type {{ id: number, text: string }[]} */
  let tokens = [];
  let seed = 1;
  /** @type {any} */
  let now = null;
  const settings = Object.fromEntries(KNOBS.map(({ name, value }) => [name, value]));
  const promptId = uid("prompt");
  const prompt = h("textarea", { id: promptId, rows: 2, dir: "auto", on: { input: () => { tokens = []; look(350); } } });
  prompt.value = t("learn.prompt-sample");
  const text = h("p.so-far.wrap", { dir: "auto", "aria-live": "polite" });
  const said = h("p.notice.bad.hidden", { role: "alert" });
  const columns = STAGES.map((stage) => stageColumn(stage, KNOBS.filter((knob) => knob.stage === stage).map((knob) => knobField(knob, settings, () => look(120)))));
  const draw = h("div.the-draw");
  const button = (/** @type {any} */ key, /** @type {() => void} */ click, spec = "button.button") => h(spec, { type: "button", on: { click } }, t(key));
  const take = button("learn.take", () => { if (now && !now.drawn.ends) { tokens.push({ id: now.drawn.id, text: now.drawn.text }); look(0); } }, "button.button.primary");
  const back = button("learn.back", () => { tokens.pop(); look(0); });
  const again = button("learn.reseed", () => { seed = Math.floor(Math.random() * 2 ** 32); look(0); });
  // Nothing is there to take before the first draw.
  take.disabled = back.disabled = true;
  const model = app.about?.models[0]?.id ?? "";
  const look = later(
    (signal) => json("/v1/learn/step", { body: { model, prompt: prompt.value, tokens: tokens.map((one) => one.id), seed, top: 40, ...settings }, signal }),
    (told) => { now = told; said.classList.add("hidden"); show(); },
    (error) => { said.textContent = error.message; said.classList.remove("hidden"); },
    ended,
  );
  function show() {
    fill(text, h("span.muted", null, prompt.value), tokens.map((one) => h("mark", null, one.text)), h("span.next", null, now.drawn.text));
    back.disabled = !tokens.length;
    take.disabled = now.drawn.ends;
    for (const column of columns) column.show(now);
    fill(draw, theDraw(now, draw.clientWidth));
  }
  look(0);
  return h("div.lesson", null, h("div.field", null, h("label", { for: promptId }, t("learn.prompt")), prompt), text,
    h("div.row", null, take, back, again), said, h("div.stages", null, columns.map((column) => column.element)), draw);
}

/** @param {(typeof KNOBS)[number]} knob @param {Record<string, number>} settings @param {() => void} changed */
function knobField({ name, min, max, step, value }, settings, changed) {
  const id = uid(name);
  const shown = h("output", { for: id }, number(value));
  const slider = h("input", { id, type: "range", min, max, step, value, on: { input: () => { settings[name] = Number(slider.value); shown.textContent = number(settings[name]); changed(); } } });
  return h("div.knob", null, h("label", { for: id, title: t(/** @type {any} */ (`explain.${name}`)) }, t(/** @type {any} */ (`parameter.${name}`))), shown, slider);
}

/**
 * One stage: its knobs, and bars after it with those of the stage before behind them.
 * @param {string} stage @param {HTMLElement[]} knobs
 */
function stageColumn(stage, knobs) {
  const before = STAGES[Math.max(0, STAGES.indexOf(stage) - 1)];
  const said = h("strong");
  const bars = h("tbody");
  const element = h("section.stage-column", null,
    h("h3", null, t(/** @type {any} */ (`learn.stage.${stage}`))),
    h("p.hint", null, t(/** @type {any} */ (`learn.stage.${stage}.is`)), " ", said),
    h("div.knobs", null, knobs),
    h("table.stage-bars", null, h("caption.unseen", null, t(/** @type {any} */ (`learn.stage.${stage}`))), bars));
  const show = (/** @type {any} */ told) => {
    const rows = told.candidates.slice(0, SHOWN);
    if (!rows.some((/** @type {any} */ one) => one.id === told.drawn.id)) rows[rows.length - 1] = told.candidates.find((/** @type {any} */ one) => one.id === told.drawn.id);
    const most = Math.max(...rows.map((/** @type {any} */ one) => Math.max(one.probabilities[stage], one.probabilities[before])), 1e-9);
    const idle = before !== stage && told.candidates.every((/** @type {any} */ one) => one.probabilities[stage] === one.probabilities[before]);
    element.classList.toggle("idle", idle);
    said.textContent = idle ? t("learn.unchanged") : t("learn.kept", { count: number(told.kept[stage] ?? told.kept.vocabulary) });
    fill(bars, rows.map((/** @type {any} */ one) => {
      const p = one.probabilities[stage];
      const now = h("i.now");
      now.style.inlineSize = `${(p / most) * 100}%`;
      const was = h("i.was");
      was.style.inlineSize = `${(one.probabilities[before] / most) * 100}%`;
      const row = h("tr", null, h("th", { scope: "row", dir: "auto" }, visible(one.text)), h("td", null, h("span.bars-pair", { "aria-hidden": "true" }, before === stage ? null : was, now)), h("td.number", null, p ? percent(p) : t("learn.out")));
      row.classList.toggle("out", p === 0);
      row.classList.toggle("drawn", one.id === told.drawn.id);
      return row;
    }));
  };
  return { element, show };
}

/** @param {any} told @param {number} width pixels there are */
function theDraw({ candidates, drawn, seed, position }, width) {
  const title = h("h3", null, t("learn.stage.draw"));
  if (drawn.number === null) return [title, h("p.small", null, t("learn.greedy", { token: visible(drawn.text) }))];
  const short = (/** @type {number} */ value) => number(value, { maximumFractionDigits: 4 });
  const [low, high] = drawn.interval;
  // Tokens stand side by side by their ids, as the sampler walks them. Where some of them are not told, only the place
  // of the one that was drawn is known.
  const parts = candidates.filter((/** @type {any} */ one) => one.probabilities.top_p > 0).sort((/** @type {any} */ a, /** @type {any} */ b) => a.id - b.id);
  const told = parts.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.probabilities.top_p, 0);
  const box = (/** @type {number} */ from, /** @type {number} */ size, /** @type {any} */ token) => {
    const element = h("span.chance", { title: token ? `${visible(token.text)} ${percent(size)}` : null, dir: "auto" }, token && size * width > LETTER * (token.text.length + 1) ? visible(token.text) : null);
    element.classList.toggle("drawn", token?.id === drawn.id);
    element.style.insetInlineStart = `${from * 100}%`;
    element.style.inlineSize = `${size * 100}%`;
    return element;
  };
  let at = 0;
  const boxes = told > 0.999999
    ? parts.map((/** @type {any} */ one) => { const from = at; at += one.probabilities.top_p; return box(from, one.probabilities.top_p, one); })
    : [box(0, 1, null), box(low, high - low, drawn)];
  const needle = h("i.needle");
  needle.style.insetInlineStart = `${drawn.number * 100}%`;
  const words = `${t("learn.drawn", { number: short(drawn.number), token: visible(drawn.text) })} ${t("learn.interval", { low: short(low), high: short(high) })}`;
  const others = Math.max(0, 1 - told);
  return [title, h("p.hint", null, t("learn.stage.draw.is", { seed: String(seed), position })),
    h("div.draw-line", { role: "img", "aria-label": words }, boxes, needle),
    h("p.small", null, words, others > 0.000001 ? ` ${t("learn.others", { part: percent(others) })}` : null, drawn.ends ? ` ${t("learn.ends")}` : null)];
}
