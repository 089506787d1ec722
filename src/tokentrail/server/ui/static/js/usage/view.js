import { h } from "../dom.js";
import { t } from "../i18n.js";

/** @param {import("../main.js").App} app @param {string} rest */
export function usageView(app, rest) {
  return { element: h("div.view", null, h("div.page", null, h("h1", null, t("nav.usage")))) };
}
