/** The stages of a journey on one axis of time. */

import { h } from "../dom.js";
import { duration } from "../format.js";
import { t } from "../i18n.js";
import { rows, span } from "./model.js";

/** @param {any} journey @param {any} sequence */
export function waterfall(journey, sequence) {
  const whole = span(journey);
  const cursor = h("div.cursor.hidden", { "aria-hidden": "true" });
  const made = rows(journey, sequence);
  const body = made.map((row) => {
    const bar = h(`div.bar.${row.kind}`, { "aria-hidden": "true" });
    const mark = row.seconds === 0 || row.spread;
    bar.classList.toggle("moment", row.seconds === 0);
    bar.classList.toggle("spread", Boolean(row.spread));
    bar.style.insetInlineStart = `${(row.start / whole.seconds) * 100}%`;
    const width = row.spread ? whole.seconds - row.start : row.seconds;
    if (row.seconds > 0) bar.style.inlineSize = `${Math.min(100, (width / whole.seconds) * 100)}%`;
    const name = t(/** @type {any} */ (`stage.${row.name}`));
    return h("tr", null,
      h("th", { scope: "row" }, h("span.stage-name", null, name), h("span.hint", null, t(/** @type {any} */ (`stage.${row.name}.is`)))),
      h("td.number", null, duration(row.start)),
      h("td.number", null, mark && !row.spread ? "" : duration(row.seconds)),
      h("td.track", null, h("div.rail-line", null, bar), row.what ? h("span.what", null, row.what) : null));
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", null, duration(part * whole.seconds)));
  const table = h("table.waterfall", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, t("journey.stage")), h("th.number", { scope: "col" }, t("journey.start")), h("th.number", { scope: "col" }, t("journey.time")),
      h("th", { scope: "col" }, h("div.ticks", { "aria-hidden": "true" }, ticks), h("span.unseen", null, t("journey.axis"))))),
    h("tbody", null, body));
  return {
    element: h("div.waterfall-box", null, table, h("div.cursor-lane", { "aria-hidden": "true" }, cursor)),
    /** @param {number | null} seconds from the start; null: nowhere */
    moveTo(seconds) {
      cursor.classList.toggle("hidden", seconds === null);
      if (seconds !== null) cursor.style.insetInlineStart = `${Math.min(1, seconds / whole.seconds) * 100}%`;
    },
  };
}
