/** The stages of a journey on one axis of time. */

import { h } from "../dom.js";
import { duration } from "../format.js";
import { t } from "../i18n.js";
import { rows, span } from "./model.js";

/** @param {any} journey @param {any} sequence */
export function waterfall(journey, sequence) {
  const whole = span(journey);
  const cursor = h("div.cursor.hidden", { "aria-hidden": "true" });
  const ticks = marks(whole.seconds);
  const part = (/** @type {number} */ seconds) => `${Math.min(1, seconds / whole.seconds) * 100}%`;
  const body = rows(journey, sequence).map((row) => {
    const bar = h(`div.bar.stage-${row.kind}`, { "aria-hidden": "true" });
    const mark = row.seconds === 0 || row.spread;
    bar.classList.toggle("moment", row.seconds === 0);
    bar.classList.toggle("spread", Boolean(row.spread));
    bar.style.insetInlineStart = part(row.start);
    const width = row.spread ? whole.seconds - row.start : row.seconds;
    if (row.seconds > 0) bar.style.inlineSize = part(width);
    const name = t(/** @type {any} */ (`stage.${row.name}`));
    return h("tr", null,
      h("th", { scope: "row" }, h("span.stage-name", null, name), h("span.hint", null, t(/** @type {any} */ (`stage.${row.name}.is`)))),
      h("td.number", null, row.start ? duration(row.start) : "0"),
      h("td.number", null, mark && !row.spread ? "" : duration(row.seconds)),
      h("td.track", null, h("div.rail-line", null, bar), row.what ? said(row.what, row.start / whole.seconds, (row.start + width) / whole.seconds) : null));
  });
  const table = h("table.waterfall", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, t("journey.stage")), h("th.number", { scope: "col" }, t("journey.start")), h("th.number", { scope: "col" }, t("journey.time")),
      h("th", { scope: "col" }, h("div.ticks", { "aria-hidden": "true" }, ticks.map((at) => placed(h("span", null, at ? duration(at) : "0"), part(at)))), h("span.unseen", null, t("journey.axis"))))),
    h("tbody", null, body));
  return {
    element: h("div.waterfall-box", null, table, h("div.cursor-lane.grid", { "aria-hidden": "true" }, ticks.map((at) => placed(h("i.gridline"), part(at)))), h("div.cursor-lane", { "aria-hidden": "true" }, cursor)),
    /** @param {number | null} seconds from the start; null: nowhere */
    moveTo(seconds) {
      cursor.classList.toggle("hidden", seconds === null);
      if (seconds !== null) cursor.style.insetInlineStart = part(seconds);
    },
  };
}

/** Words below a bar: from its beginning on, or up to its end where that is nearer the edge. @param {string} text @param {number} from @param {number} to */
function said(text, from, to) {
  const element = h("span.what", null, text);
  if (from < 0.5) element.style.paddingInlineStart = `${from * 100}%`;
  else {
    element.style.paddingInlineEnd = `${Math.max(0, 1 - to) * 100}%`;
    element.style.textAlign = "end";
  }
  return element;
}

/** @param {HTMLElement} element @param {string} at */
function placed(element, at) {
  element.style.insetInlineStart = at;
  return element;
}

/** Round times on the axis, five to nine of them; none near its end, where it would be cut off. @param {number} seconds */
function marks(seconds) {
  const rough = seconds / 8;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * ten).find((one) => one >= rough) ?? rough;
  const made = [];
  for (let at = 0; at <= seconds * 0.97; at += step) made.push(at);
  return made;
}
