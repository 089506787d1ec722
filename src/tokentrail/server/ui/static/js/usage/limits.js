/** Limits: how much of them is used, and the fields that set them. */

import { h } from "../dom.js";
import { field } from "../dialog.js";
import { number } from "../format.js";
import { language, t } from "../i18n.js";

const LIMITS = /** @type {const} */ (["requests_per_minute", "tokens_per_minute", "concurrent_requests", "tokens_per_day", "tokens_per_month", "money_per_day", "money_per_month"]);

/** @param {Record<string, number | null>} limits */
export function limitFields(limits) {
  const boxes = LIMITS.map((name) => {
    const money = name.startsWith("money");
    const box = h("input", { type: "number", min: money ? "0.000001" : 1, step: money ? "any" : 1, inputmode: "decimal", placeholder: t("usage.no-limit") });
    if (limits[name] !== undefined && limits[name] !== null) box.value = String(limits[name]);
    return { name, box };
  });
  return {
    element: h("fieldset.limit-fields", null, h("legend", null, t("usage.limits")), h("p.hint", null, t("usage.limits-hint")), boxes.map(({ name, box }) => field(t(`limit.${name}`), box))),
    /** What is set; a limit that was null (none, whatever the default) stays so. */
    value() {
      const kept = Object.entries(limits).filter(([, value]) => value === null);
      const given = boxes.filter(({ box }) => box.value.trim() !== "").map(({ name, box }) => [name, Number(box.value)]);
      return Object.fromEntries([...kept, ...given]);
    },
  };
}

/** How much of each limit is used now. @param {any[]} uses */
export function limitUse(uses) {
  if (!uses.length) return h("p.small.muted", null, t("usage.unlimited"));
  return h("ul.limit-use", null, uses.map((use) => {
    const part = Math.min(1, use.used / use.limit);
    const bar = h(`i${part >= 0.9 ? ".near" : ""}`);
    bar.style.inlineSize = `${part * 100}%`;
    const when = use.resets_at === null ? "" : t("usage.resets", { when: new Intl.DateTimeFormat(language(), { dateStyle: "medium", timeStyle: "short" }).format(use.resets_at * 1000) });
    return h("li", null,
      h("div.limit-head.small", null, h("span", null, t(/** @type {any} */ (`limit.${use.name}`)), use.of === "tenant" ? h("span.muted", null, ` ${t("usage.of-tenant")}`) : null),
        h("span", null, t("usage.used-of", { used: number(use.used, { maximumFractionDigits: 4 }), limit: number(use.limit) }))),
      h("div.limit-bar", { "aria-hidden": "true" }, bar), when ? h("p.hint", null, when) : null);
  }));
}
