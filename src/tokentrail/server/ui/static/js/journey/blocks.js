/** KV blocks that a sequence held, and all that were used, over time. */

import { h, svg } from "../dom.js";
import { duration, number } from "../format.js";
import { t } from "../i18n.js";
import { span } from "./model.js";

const WIDTH = 1000;
const HEIGHT = 160;
const MOST_POINTS = 1500;

/** @param {any} journey @param {any} sequence */
export function blocksChart(journey, sequence) {
  const { start, seconds } = span(journey);
  const every = Math.max(1, Math.ceil(sequence.steps.length / MOST_POINTS));
  const steps = sequence.steps.filter((/** @type {any} */ _, /** @type {number} */ index) => index % every === 0 || index === sequence.steps.length - 1);
  const most = Math.max(1, ...steps.map((/** @type {any} */ step) => step.blocks_used));
  const x = (/** @type {number} */ at) => ((at - start) / seconds) * WIDTH;
  const y = (/** @type {number} */ blocks) => HEIGHT - (blocks / most) * HEIGHT;
  const path = (/** @type {"blocks" | "blocks_used"} */ name) => {
    let d = "";
    for (const step of steps) d += d ? `H${x(step.start_at + step.seconds)}V${y(step[name])}` : `M${x(step.start_at)} ${HEIGHT}V${y(step[name])}`;
    const last = steps.at(-1);
    return d ? `${d}H${x(last.start_at + last.seconds)}V${HEIGHT}Z` : "";
  };
  const marks = [...sequence.preempted_at.map((/** @type {number} */ at) => [at, "preempted"]), ...sequence.resumed_at.map((/** @type {number} */ at) => [at, "resumed"])];
  const held = Math.max(0, ...steps.map((/** @type {any} */ step) => step.blocks));
  return h("figure.chart", null,
    h("div.plot", null,
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": t("journey.blocks-chart", { held, most }) },
        svg("path", { d: path("blocks_used"), class: "area-all" }), svg("path", { d: path("blocks"), class: "area-own" }),
        marks.map(([at, kind]) => svg("line", { x1: x(at), x2: x(at), y1: 0, y2: HEIGHT, class: `mark-${kind}` }))),
      h("span.level", { "aria-hidden": "true" }, t("journey.blocks-axis", { count: number(most) }))),
    h("div.axis.tiny.muted", { "aria-hidden": "true" }, h("span", null, "0"), h("span", null, duration(seconds))),
    h("figcaption.legend", null, h("span.key-own", null, t("journey.blocks-own", { count: number(held) })), h("span.key-all", null, t("journey.blocks-used", { count: number(most) })),
      sequence.preempted_at.length ? h("span.key-preempted", null, t("stage.preempted")) : null, sequence.resumed_at.length ? h("span.key-resumed", null, t("stage.resumed")) : null));
}
