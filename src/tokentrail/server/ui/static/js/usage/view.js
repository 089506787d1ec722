/** What has been used by whom, and who may ask: for who has an admin's key. */

import { fill, h } from "../dom.js";
import { number, short } from "../format.js";
import { t } from "../i18n.js";
import { all, usage } from "./admin.js";
import { cells, dayChart, heads } from "./chart.js";
import { keysTable, newKey, newTenant, tenantsTable } from "./keys.js";
import { add, empty, lastDays, money, sums } from "./sums.js";

const RANGES = [7, 30, 90];

/** @param {import("../main.js").About} about whether its view has anything to show */
export function hasUsage(about) {
  return about.admin && about.admin_api;
}

/** @param {import("../main.js").App} app */
export function usageView(app) {
  const view = new UsageView(app);
  void view.load();
  return { element: view.element, close: () => view.aborter.abort() };
}

class UsageView {
  /** @param {import("../main.js").App} app */
  constructor(app) {
    this.app = app;
    this.aborter = new AbortController();
    this.days = 30;
    /** Of the latest question: an answer to an earlier one comes too late. */
    this.turn = 0;
    this.ranges = RANGES.map((days) => h("button.button", { type: "button", "aria-pressed": String(days === this.days), on: { click: () => this.#choose(days) } }, t("usage.days", { count: days })));
    this.said = h("p.notice.bad.hidden", { role: "alert" });
    this.used = h("div.used");
    this.managed = h("div.managed");
    this.element = h("div.view", null, h("div.page", null,
      h("header.page-head", null, h("h1", null, t("nav.usage")), h("div.row", { role: "group", "aria-label": t("usage.range") }, app.about?.ledger ? this.ranges : null)),
      this.said, this.used, this.managed));
  }

  /** @param {number} days */
  #choose(days) {
    this.days = days;
    this.ranges.forEach((button, index) => button.setAttribute("aria-pressed", String(RANGES[index] === days)));
    void this.load();
  }

  async load() {
    const { signal } = this.aborter;
    const days = lastDays(this.days);
    const turn = ++this.turn;
    this.managed.setAttribute("aria-busy", "true");
    const asked = (/** @type {string} */ by) => (this.app.about?.ledger ? usage(by, days[0], signal) : Promise.resolve([]));
    try {
      const [byDay, byModel, byKey, keys, tenants] = await Promise.all([asked("day"), asked("model"), asked("key"), all("/keys?status=all", signal), all("/tenants", signal)]);
      if (turn !== this.turn) return;
      this.said.classList.add("hidden");
      this.#usage(days, byDay, byModel);
      this.#keys({ keys, tenants, byKey: sums(byKey, "key"), days: this.days, costs: byKey.some((line) => line.currency), again: () => this.load() });
    } catch (error) {
      if (signal.aborted || turn !== this.turn) return;
      this.said.textContent = String(/** @type {any} */ (error).message);
      this.said.classList.remove("hidden");
    } finally {
      if (turn === this.turn) this.managed.setAttribute("aria-busy", "false");
    }
  }

  /** @param {string[]} days @param {import("./admin.js").Line[]} byDay @param {import("./admin.js").Line[]} byModel */
  #usage(days, byDay, byModel) {
    if (!this.app.about?.ledger) {
      fill(this.used, h("p.notice", null, t("usage.no-ledger")));
      return;
    }
    const found = sums(byDay, "day");
    const whole = empty("");
    byDay.forEach((line) => add(whole, line));
    const figure = (/** @type {any} */ key, /** @type {string} */ value, more = "") => h("div", null, h("dt", null, t(key)), h("dd", null, value, more ? [" ", h("small", null, more)] : null));
    const costs = whole.costs.size > 0;
    const models = [...sums(byModel, "model").values()].sort((one, other) => other.prompt + other.output - one.prompt - one.output);
    fill(this.used,
      h("section.panel", null, h("dl.figures", null,
        figure("usage.requests", number(whole.requests), whole.refused ? t("usage.refused", { count: number(whole.refused) }) : ""),
        figure("usage.prompt", short(whole.prompt), whole.cached ? t("journey.cached-count", { count: short(whole.cached) }) : ""),
        figure("usage.output", short(whole.output)), costs ? figure("usage.cost", money(whole.costs)) : null)),
      h("section.panel.part", null, h("h2", null, t("usage.by-day")), h("p.hint", null, t("usage.by-day-lead")), dayChart(days.map((day) => found.get(day) ?? empty(day)))),
      h("section.panel.part", null, h("h2", null, t("usage.by-model")),
        models.length ? h("div.scroll-x", { tabindex: "0", role: "group", "aria-label": t("usage.by-model") }, h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, t("chat.model")), heads(costs))),
          h("tbody", null, models.map((model) => h("tr", null, h("th.wrap", { scope: "row", dir: "auto" }, model.name || "–"), cells(model, costs)))))) : h("p.small.muted", null, t("usage.nothing"))));
  }

  /** @param {import("./keys.js").Facts} facts */
  #keys(facts) {
    const part = (/** @type {any} */ title, /** @type {any} */ lead, /** @type {any} */ action, /** @type {() => unknown} */ click, /** @type {Node} */ table) =>
      h("section.panel.part", null, h("div.part-head", null, h("h2", null, t(title)), h("button.button", { type: "button", on: { click } }, t(action))), h("p.hint", null, t(lead)),
        h("div.scroll-x", { tabindex: "0", role: "group", "aria-label": t(title) }, table));
    // The button that has the focus is made anew with its table.
    const focused = this.managed.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    fill(this.managed,
      part("usage.keys", "usage.keys-lead", "usage.new-key", () => newKey(facts), keysTable(facts)),
      part("usage.tenants", "usage.tenants-lead", "usage.new-tenant", () => newTenant(facts), facts.tenants.length ? tenantsTable(facts) : h("p.small.muted", null, t("usage.no-tenants"))));
    if (focused) /** @type {HTMLElement | null} */ (this.managed.querySelector(`[aria-label="${CSS.escape(focused)}"]`))?.focus();
  }
}
