/** The sampling parameters, each with what it does in plain words. */

import { h, uid } from "../dom.js";
import { number } from "../format.js";
import { t } from "../i18n.js";

/** @type {{ name: string, min: number, max: number, step: number, neutral: number, whole?: boolean }[]} */
export const PARAMETERS = [
  { name: "temperature", min: 0, max: 2, step: 0.05, neutral: 1 },
  { name: "top_p", min: 0.01, max: 1, step: 0.01, neutral: 1 },
  { name: "top_k", min: 0, max: 200, step: 1, neutral: 0, whole: true },
  { name: "min_p", min: 0, max: 1, step: 0.01, neutral: 0 },
  { name: "repetition_penalty", min: 0.5, max: 2, step: 0.01, neutral: 1 },
  { name: "frequency_penalty", min: -2, max: 2, step: 0.05, neutral: 0 },
  { name: "presence_penalty", min: -2, max: 2, step: 0.05, neutral: 0 },
  { name: "max_tokens", min: 1, max: Infinity, step: 1, neutral: NaN, whole: true },
  { name: "seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, neutral: NaN, whole: true },
];

/**
 * @param {Record<string, any>} values changed in place @param {Record<string, number>} defaults the model's makers'
 * @param {{ changed: () => void, context: number, trailText: boolean }} options
 */
export function parameterFields(values, defaults, { changed, context, trailText }) {
  const fields = PARAMETERS.map((parameter) => field(parameter, values, defaults[parameter.name], changed, context));
  const stopId = uid("stop");
  const stop = h("textarea", { id: stopId, rows: 2, "aria-describedby": `${stopId}-hint`, on: {
    input: () => { values.stop = stop.value; changed(); },
  } });
  stop.value = values.stop ?? "";
  const alternatives = h("input", { type: "checkbox", on: { change: () => { values.alternatives = alternatives.checked; changed(); } } });
  alternatives.checked = Boolean(values.alternatives);
  return h("div.parameters", null, fields,
    h("div.field", null, h("label", { for: stopId }, t("parameter.stop")), stop, h("p.hint", { id: `${stopId}-hint` }, t("explain.stop"))),
    h("div.field", null, h("label.check", null, alternatives, h("span", null, t("parameter.alternatives"))),
      h("p.hint", null, t(trailText ? "explain.alternatives" : "explain.alternatives-off"))));
}

/**
 * @param {(typeof PARAMETERS)[number]} parameter @param {Record<string, any>} values @param {number | undefined} usual
 * @param {() => void} changed @param {number} context
 */
function field(parameter, values, usual, changed, context) {
  const { name, min, step, neutral } = parameter;
  const max = name === "max_tokens" ? context : parameter.max;
  const id = uid(name);
  const standard = usual ?? neutral;
  const shown = Number.isNaN(standard) ? t(`default.${/** @type {"seed"} */ (name)}`) : t("default", { value: number(standard, { maximumFractionDigits: 3 }) });
  const box = h("input", {
    id, type: "number", min, max: Number.isFinite(max) ? max : null, step: parameter.whole ? 1 : "any", inputmode: "decimal",
    placeholder: shown, "aria-describedby": `${id}-hint`,
    on: { input: () => take(box.value) },
  });
  const slides = Number.isFinite(parameter.max) && name !== "seed";
  const slider = slides ? h("input", { type: "range", min, max, step, "aria-label": t(`parameter.${/** @type {"seed"} */ (name)}`), on: { input: () => { box.value = slider.value; take(slider.value); } } }) : null;
  const reset = h("button.plain", { type: "button", on: { click: () => { box.value = ""; take(""); } } }, t("reset"));
  function take(/** @type {string} */ text) {
    const value = text.trim() === "" ? undefined : Number(text);
    if (value === undefined || Number.isNaN(value)) delete values[name];
    else values[name] = value;
    box.setCustomValidity("");
    show();
    changed();
  }
  function show() {
    const value = values[name];
    reset.classList.toggle("hidden", value === undefined);
    if (slider) slider.value = String(value ?? standard);
  }
  if (values[name] !== undefined) box.value = String(values[name]);
  show();
  return h("div.field.parameter", null,
    h("div.parameter-head", null, h("label", { for: id }, t(`parameter.${/** @type {"seed"} */ (name)}`)), reset, box),
    slider,
    h("p.hint", { id: `${id}-hint` }, t(`explain.${/** @type {"seed"} */ (name)}`)));
}
