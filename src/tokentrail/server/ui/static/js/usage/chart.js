/** A bar for each day, and the same as a table. */

import { fill, h } from "../dom.js";
import { number, short } from "../format.js";
import { language, t } from "../i18n.js";
import { inCurrency, money } from "./sums.js";

/** @typedef {"tokens" | "requests" | "cost"} Measure */

/** @param {import("./sums.js").Sum[]} days in order; `name` is the day */
export function dayChart(days) {
  const currencies = [...new Set(days.flatMap((day) => [...day.costs.keys()]))];
  /** @type {Measure[]} */
  const measures = currencies.length ? ["tokens", "requests", "cost"] : ["tokens", "requests"];
  const plot = h("div.day-plot", { "aria-hidden": "true" });
  const legend = h("div.day-legend.tiny.muted", { "aria-hidden": "true" });
  const buttons = measures.map((measure) => h("button.button", { type: "button", on: { click: () => show(measure) } }, t(`usage.measure.${measure}`)));
  function show(/** @type {Measure} */ measure) {
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(measures[index] === measure)));
    draw(plot, days, measure, currencies[0]);
    fill(legend, measure === "tokens" ? [h("span.key-prompt", null, t("usage.prompt")), h("span.key-output", null, t("usage.output"))] : null,
      measure === "cost" && currencies.length > 1 ? h("span", null, t("usage.one-currency", { currency: currencies[0] })) : null);
  }
  show(measures[0]);
  return h("div.day-chart", null,
    h("div.row", { role: "group", "aria-label": t("usage.measure") }, buttons, legend), plot,
    h("details", null, h("summary", null, t("usage.as-table")), h("div.scroll-x", { tabindex: "0", role: "group", "aria-label": t("usage.by-day") }, table(days, currencies.length > 0))));
}

/** @param {HTMLElement} plot @param {import("./sums.js").Sum[]} days @param {Measure} measure @param {string} currency */
function draw(plot, days, measure, currency) {
  const parts = (/** @type {import("./sums.js").Sum} */ day) => measure === "tokens" ? [day.prompt, day.output] : [measure === "requests" ? day.requests : (day.costs.get(currency) ?? 0)];
  const wholes = days.map((day) => parts(day).reduce((sum, part) => sum + part, 0));
  const top = roundUp(Math.max(...wholes), measure !== "cost");
  const told = (/** @type {number} */ value) => (measure === "cost" ? inCurrency(value, currency) : short(value));
  const columns = days.map((day, index) => {
    const bars = parts(day).map((part, at, list) => {
      const bar = h(`i.${list.length > 1 && at === 0 ? "prompt" : "output"}`);
      bar.style.blockSize = `${(part / top) * 100}%`;
      return bar;
    });
    return h("span.day", { title: `${dayName(day.name)}: ${told(wholes[index])}` }, bars.reverse());
  });
  const marks = [top, top / 2, 0].map((value) => h("span", null, told(value)));
  fill(plot, h("div.day-scale.tiny.muted", null, marks), h("div.day-columns", null, columns),
    h("div.day-names.tiny.muted", null, [days[0], days[Math.floor(days.length / 2)], days.at(-1)].map((day) => h("span", null, dayName(/** @type {any} */ (day).name)))));
}

/** A round number that is not below `value`. @param {number} value @param {boolean} whole */
function roundUp(value, whole) {
  if (value <= 0) return whole ? 10 : 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  const found = [1, 2, 4, 5, 10].map((step) => step * unit).find((step) => step >= value * 0.999999) ?? value;
  return whole ? Math.max(2, Math.ceil(found)) : found;
}

/** @param {import("./sums.js").Sum[]} days @param {boolean} costs */
function table(days, costs) {
  return h("table", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, t("usage.day")), heads(costs))),
    h("tbody", null, days.filter((day) => day.requests).reverse().map((day) => h("tr", null, h("th", { scope: "row" }, dayName(day.name)), cells(day, costs)))));
}

/** Column heads of sums. @param {boolean} costs */
export function heads(costs) {
  const head = (/** @type {any} */ key) => h("th.number", { scope: "col" }, t(key));
  return [head("usage.requests"), head("usage.prompt"), head("usage.cached"), head("usage.output"), costs ? head("usage.cost") : null];
}

/** @param {import("./sums.js").Sum} sum @param {boolean} costs */
export function cells(sum, costs) {
  return [h("td.number", null, number(sum.requests)), h("td.number", null, number(sum.prompt)), h("td.number", null, number(sum.cached)), h("td.number", null, number(sum.output)), costs ? h("td.number", null, money(sum.costs)) : null];
}

/** @param {string} day as YYYY-MM-DD */
function dayName(day) {
  return new Intl.DateTimeFormat(language(), { day: "numeric", month: "short", timeZone: "UTC" }).format(new Date(`${day}T00:00:00Z`));
}
