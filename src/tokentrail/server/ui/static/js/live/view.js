/** What happens now: fed by one stream of events. */

import { events, serverBack } from "../api.js";
import { fill, h } from "../dom.js";
import { duration, number, percent } from "../format.js";
import { t } from "../i18n.js";
import { BlockMap } from "./block-map.js";
import { StepStrip } from "./step-strip.js";

/** @param {import("../main.js").App} app */
export function liveView(app) {
  const live = new Live(app);
  void live.follow();
  return { element: live.element, close: () => live.close() };
}

class Live {
  /** @param {import("../main.js").App} app */
  constructor(app) {
    this.app = app;
    this.aborter = new AbortController();
    this.said = h("p.notice.hidden", { role: "status" });
    this.figures = h("dl.figures.now");
    this.requests = h("div.scroll-x", { tabindex: "0", role: "group", "aria-label": t("live.requests") });
    this.maps = h("div.maps");
    this.strip = new StepStrip();
    this.targets = h("section.panel.part.hidden");
    this.paused = false;
    this.pause = h("button.button", { type: "button", "aria-pressed": "false", on: { click: () => this.#pause() } }, t("live.pause"));
    this.element = h("div.view", null, h("div.page", null,
      h("header.page-head", null, h("h1", null, t("nav.live")), this.pause, h("p.lead", null, t("live.lead"))),
      this.said,
      h("section.panel", null, this.figures),
      h("section.panel.part", null, h("h2", null, t("live.steps")), h("p.hint", null, t("live.steps-lead")), this.strip.element),
      h("section.panel.part", null, h("h2", null, t("live.requests")), h("p.hint", null, t("live.requests-lead")), this.requests),
      h("section.panel.part", null, h("h2", null, t("live.blocks")), h("p.hint", null, t("live.blocks-lead")), this.maps),
      this.targets));
    /** @type {BlockMap[]} */
    this.blockMaps = [];
  }

  close() {
    this.aborter.abort();
    this.strip.close();
  }

  #pause() {
    this.paused = !this.paused;
    this.pause.setAttribute("aria-pressed", String(this.paused));
    this.pause.textContent = t(this.paused ? "live.resume" : "live.pause");
  }

  async follow() {
    const { signal } = this.aborter;
    for (;;) {
      try {
        for await (const event of events("/v1/live?interval=0.2", { signal })) {
          this.said.classList.add("hidden");
          if (!this.paused && !document.hidden) this.#show(event);
        }
      } catch (error) {
        if (signal.aborted) return;
        this.said.textContent = /** @type {any} */ (error).passing ? t("live.away") : String(/** @type {any} */ (error).message);
        this.said.classList.remove("hidden");
        try {
          await serverBack(signal);
          await new Promise((resolve) => setTimeout(resolve, 500));
        } catch {
          return;
        }
      }
    }
  }

  /** @param {any} live */
  #show(live) {
    this.#figures(live);
    this.#requests(live);
    this.strip.add(live.steps);
    if (live.blocks !== null) this.#blocks(live.blocks);
    if (live.targets?.length) this.#targets(live.targets);
  }

  /** @param {any} live */
  #figures({ totals, rates, engine_up: up }) {
    const figure = (/** @type {any} */ key, /** @type {string} */ value, more = "") => h("div", null, h("dt", null, t(key)), h("dd", null, value, more ? [" ", h("small", null, more)] : null));
    const three = (/** @type {any} */ one) => (one?.count ? t("live.percentiles", { p90: duration(one.p90), p99: duration(one.p99) }) : "");
    const hits = totals.prefix_queries ? percent(totals.prefix_hits / totals.prefix_queries) : "–";
    fill(this.figures,
      up ? null : figure("live.engine", t("live.down")),
      figure("live.running", number(totals.running)), figure("live.waiting", number(totals.waiting)),
      figure("live.rate", rates ? number(rates.tokens_per_second, { maximumFractionDigits: 1 }) : "–"),
      figure("live.prompt-rate", rates ? number(rates.prompt_tokens_per_second, { maximumFractionDigits: 0 }) : "–"),
      figure("live.first", duration(rates?.first_token.p50), three(rates?.first_token)),
      figure("live.between", duration(rates?.inter_token.p50), three(rates?.inter_token)),
      figure("live.cache", hits), figure("live.preempted", number(totals.preemptions)),
      totals.drafted_tokens ? figure("live.drafts", percent(totals.accepted_tokens / totals.drafted_tokens)) : null);
  }

  /** @param {any} live */
  #requests({ requests, others_running: running, others_waiting: waiting, at }) {
    const others = running + waiting ? h("p.small.muted", null, t("live.others", { running, waiting })) : null;
    if (!requests.length) {
      fill(this.requests, h("p.small.muted", null, t("live.idle")), others);
      return;
    }
    // The link that has the focus is made anew with the table.
    const focused = this.requests.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).getAttribute("href") : null;
    fill(this.requests, h("table.requests", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, t("live.request")), h("th", { scope: "col" }, t("live.state")), h("th.number", { scope: "col" }, t("live.since")), h("th.number", { scope: "col" }, t("journey.prompt")), h("th.number", { scope: "col" }, t("journey.completion")), h("th.number", { scope: "col" }, t("live.held")))),
      h("tbody", null, requests.map((/** @type {any} */ one) => h("tr", null,
        h("td", null, h("a.mono", { href: `#/journey/${encodeURIComponent(one.id)}` }, one.id.slice(-8)), one.own ? null : h("span.muted.tiny", null, ` ${t("live.another")}`)),
        h("td", null, h(`span.tag.state-${one.state}`, null, t(/** @type {any} */ (`live.state.${one.state}`)))),
        h("td.number", null, duration(Math.max(0, at - one.received_at))),
        h("td.number", null, one.cached_tokens ? h("span.muted.tiny", null, t("journey.cached-count", { count: number(one.cached_tokens) }), " ") : null, number(one.prompt_tokens)),
        h("td.number", null, number(one.completion_tokens)),
        h("td.number", null, number(one.blocks)))))), others);
    if (focused) /** @type {HTMLElement | null} */ (this.requests.querySelector(`a[href="${CSS.escape(focused)}"]`))?.focus();
  }

  /** @param {any[]} blocks */
  #blocks(blocks) {
    if (this.blockMaps.length !== blocks.length) {
      this.blockMaps = blocks.map(() => new BlockMap());
      fill(this.maps, blocks.length ? this.blockMaps.map((map, index) => h("div", null, blocks.length > 1 ? h("h3", null, t("live.engine-number", { number: index + 1 })) : null, map.element)) : h("p.small.muted", null, t("live.no-blocks")));
    }
    blocks.forEach((one, index) => this.blockMaps[index].show(one));
  }

  /** @param {any[]} targets */
  #targets(targets) {
    this.targets.classList.remove("hidden");
    fill(this.targets, h("h2", null, t("live.targets")), h("table", null,
      h("thead", null, h("tr", null, h("th", { scope: "col" }, t("live.target")), h("th", { scope: "col" }, t("live.health")), h("th", { scope: "col" }, t("live.detail")))),
      h("tbody", null, targets.map((one) => h("tr", null, h("td", null, one.name), h("td", null, h(one.state === "closed" ? "span.tag.live" : one.state === "open" || one.state === "down" ? "span.tag.bad" : "span.tag", null, t(/** @type {any} */ (`live.target.${one.state}`)))),
        h("td.small.muted.wrap", null, one.detail ? t("live.target-detail", { kind: one.detail.kind, active: one.detail.active, requests: one.detail.requests, failures: one.detail.failures, ejections: one.detail.ejections }) : null, one.detail?.last_error ? h("span", { dir: "auto" }, ` ${one.detail.last_error}`) : null))))));
  }
}

