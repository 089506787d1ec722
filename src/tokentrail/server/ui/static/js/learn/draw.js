/** One token at a time: from logits through each knob to the draw. */

import { json } from "../api.js";
import { fill, h, svg, uid } from "../dom.js";
import { number, percent, visible } from "../format.js";
import { t } from "../i18n.js";
import { later } from "./later.js";

const STAGES = ["logits", "penalties", "temperature", "min_p", "top_k", "top_p"];
const KNOBS = [
  { name: "repetition_penalty", min: 0.5, max: 2, step: 0.05, value: 1 },
  { name: "frequency_penalty", min: -2, max: 2, step: 0.1, value: 0 },
  { name: "presence_penalty", min: -2, max: 2, step: 0.1, value: 0 },
  { name: "temperature", min: 0, max: 2, step: 0.05, value: 1 },
  { name: "min_p", min: 0, max: 0.5, step: 0.01, value: 0 },
  { name: "top_k", min: 0, max: 50, step: 1, value: 0 },
  { name: "top_p", min: 0.05, max: 1, step: 0.01, value: 1 },
];
const SHOWN = 14;

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
  const stages = h("div.stages");
  const draw = h("div.the-draw");
  const button = (/** @type {any} */ key, /** @type {() => void} */ click, spec = "button.button") => h(spec, { type: "button", on: { click } }, t(key));
  const take = button("learn.take", () => { if (now && !now.drawn.ends) { tokens.push({ id: now.drawn.id, text: now.drawn.text }); look(0); } }, "button.button.primary");
  const back = button("learn.back", () => { tokens.pop(); look(0); });
  const again = button("learn.reseed", () => { seed = Math.floor(Math.random() * 2 ** 32); look(0); });
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
    fill(stages, STAGES.map((stage) => column(now, stage)));
    fill(draw, theDraw(now));
  }
  look(0);
  return h("div.lesson", null, h("div.field", null, h("label", { for: promptId }, t("learn.prompt")), prompt), text,
    h("div.row", null, take, back, again), said, h("div.knobs", null, KNOBS.map((knob) => knobField(knob, settings, () => look(120)))), stages, draw);
}

/** @param {(typeof KNOBS)[number]} knob @param {Record<string, number>} settings @param {() => void} changed */
function knobField({ name, min, max, step, value }, settings, changed) {
  const id = uid(name);
  const shown = h("output", { for: id }, number(value));
  const slider = h("input", { id, type: "range", min, max, step, value, on: { input: () => { settings[name] = Number(slider.value); shown.textContent = number(settings[name]); changed(); } } });
  return h("div.knob", null, h("label", { for: id, title: t(/** @type {any} */ (`explain.${name}`)) }, t(/** @type {any} */ (`parameter.${name}`))), shown, slider);
}

/** Bars after a stage, with those of the stage before behind them. @param {any} told @param {string} stage */
function column(told, stage) {
  const before = STAGES[Math.max(0, STAGES.indexOf(stage) - 1)];
  const rows = told.candidates.slice(0, SHOWN);
  if (!rows.some((/** @type {any} */ one) => one.id === told.drawn.id)) rows[SHOWN - 1] = told.candidates.find((/** @type {any} */ one) => one.id === told.drawn.id);
  const most = Math.max(...rows.map((/** @type {any} */ one) => Math.max(one.probabilities[stage], one.probabilities[before])), 1e-9);
  const kept = told.kept[stage] ?? told.kept.vocabulary;
  return h("section.stage-column", null,
    h("h3", null, t(/** @type {any} */ (`learn.stage.${stage}`))),
    h("p.hint", null, t(/** @type {any} */ (`learn.stage.${stage}.is`)), " ", h("strong", null, t("learn.kept", { count: number(kept) }))),
    h("table.stage-bars", null, h("caption.unseen", null, t(/** @type {any} */ (`learn.stage.${stage}`))), h("tbody", null, rows.map((/** @type {any} */ one) => {
      const p = one.probabilities[stage];
      const now = h("i.now");
      now.style.inlineSize = `${(p / most) * 100}%`;
      const was = h("i.was");
      was.style.inlineSize = `${(one.probabilities[before] / most) * 100}%`;
      const row = h("tr", null, h("th", { scope: "row", dir: "auto" }, visible(one.text)), h("td", null, h("span.bars-pair", { "aria-hidden": "true" }, was, now)), h("td.number", null, p ? percent(p) : t("learn.out")));
      row.classList.toggle("out", p === 0);
      row.classList.toggle("drawn", one.id === told.drawn.id);
      return row;
    }))));
}

/** @param {any} told */
function theDraw({ candidates, drawn, seed, position }) {
  if (drawn.number === null) return [h("h3", null, t("learn.stage.draw")), h("p.small", null, t("learn.greedy", { token: visible(drawn.text) }))];
  // Tokens stand side by side by their ids, as the sampler walks them; what is not told is the gap between.
  const parts = candidates.filter((/** @type {any} */ one) => one.probabilities.top_p > 0).sort((/** @type {any} */ a, /** @type {any} */ b) => a.id - b.id);
  const total = parts.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.probabilities.top_p, 0);
  const [low, high] = drawn.interval;
  let at = 0;
  const others = Math.max(0, 1 - total);
  const boxes = total > 0.999999
    ? parts.map((/** @type {any} */ one) => { const x = at; at += one.probabilities.top_p; return svg("rect", { x: x * 1000, y: 0, width: Math.max(0.5, one.probabilities.top_p * 1000 - 1), height: 26, class: one.id === drawn.id ? "part drawn" : "part" }, svg("title", {}, `${visible(one.text)} ${percent(one.probabilities.top_p)}`)); })
    : [svg("rect", { x: 0, y: 0, width: 1000, height: 26, class: "part" }), svg("rect", { x: low * 1000, y: 0, width: Math.max(1.5, (high - low) * 1000), height: 26, class: "part drawn" })];
  return [h("h3", null, t("learn.stage.draw")), h("p.hint", null, t("learn.stage.draw.is", { seed: String(seed), position })),
    svg("svg", { viewBox: "0 0 1000 40", preserveAspectRatio: "none", class: "draw-line", role: "img", "aria-label": t("learn.drawn", { number: number(drawn.number, { maximumFractionDigits: 4 }), token: visible(drawn.text) }) }, boxes,
      svg("line", { x1: drawn.number * 1000, x2: drawn.number * 1000, y1: 0, y2: 40, class: "needle" })),
    h("p.small", null, t("learn.drawn", { number: number(drawn.number, { maximumFractionDigits: 4 }), token: visible(drawn.text) }), " ", t("learn.interval", { low: number(low, { maximumFractionDigits: 4 }), high: number(high, { maximumFractionDigits: 4 }) }), others > 0.000001 ? ` ${t("learn.others", { part: percent(others) })}` : "", drawn.ends ? ` ${t("learn.ends")}` : "")];
}
