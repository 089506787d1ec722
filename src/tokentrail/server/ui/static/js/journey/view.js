/** One journey, or the list of them. */

import { ApiError, json } from "../api.js";
import { fill, h } from "../dom.js";
import { clock, duration, number } from "../format.js";
import { t } from "../i18n.js";
import { blocksChart } from "./blocks.js";
import { chromeTrace } from "./chrome-trace.js";
import { ended, NO_SEQUENCE, rate, span, stepsOfTokens } from "./model.js";
import { replay } from "./replay.js";
import { answerTokens, promptTokens, tokenDetails } from "./tokens.js";
import { waterfall } from "./waterfall.js";

const LOOK_AGAIN = 1000;

/** @param {import("../main.js").App} app @param {string} id empty: the list */
export function journeyView(app, id) {
  const page = h("div.page");
  const view = new (id ? One : List)(app, page, id);
  void view.load();
  return { element: h("div.view", null, page), close: () => view.close() };
}

class Loader {
  /** @param {import("../main.js").App} app @param {HTMLElement} page @param {string} id */
  constructor(app, page, id) {
    this.app = app;
    this.page = page;
    this.id = id;
    this.aborter = new AbortController();
    this.timer = 0;
  }

  close() {
    this.aborter.abort();
    clearTimeout(this.timer);
  }

  async load() {
    try {
      await this.show();
    } catch (error) {
      if (this.aborter.signal.aborted) return;
      const missing = error instanceof ApiError && error.status === 404;
      fill(this.page, h("h1", null, t("nav.journey")), h("p.notice.bad", { role: "alert" }, missing ? t("journey.missing", { count: this.app.about?.trail_size ?? 0 }) : String(/** @type {any} */ (error).message)),
        h("p", null, h("a", { href: "#/journey" }, t("journey.all"))));
    }
  }

  later() {
    this.timer = setTimeout(() => void this.load(), LOOK_AGAIN);
  }
}

class List extends Loader {
  async show() {
    const { data } = await json("/v1/journeys?limit=100", { signal: this.aborter.signal });
    const seen = JSON.stringify(data);
    if (seen !== this.seen) {
      this.seen = seen;
      const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.closest?.(".journeys a")?.getAttribute("href");
      fill(this.page, h("h1", null, t("nav.journey")), h("p.lead", null, t("journey.list-lead")), data.length ? this.#table(data) : h("p.muted", null, t("journey.none")));
      if (focused) /** @type {HTMLElement | null} */ (this.page.querySelector(`a[href="${CSS.escape(focused)}"]`))?.focus();
    }
    this.later();
  }

  /** @param {any[]} data */
  #table(data) {
    return h("div.scroll-x.panel", { tabindex: "0", role: "group", "aria-label": t("nav.journey") }, h("table.journeys", null,
      h("thead", null, h("tr", null, [["journey.when"], ["journey.what"], ["journey.tokens", 1], ["journey.first-token", 1], ["journey.rate", 1], ["journey.total", 1], ["journey.end"]].map(([key, right]) => h(right ? "th.number" : "th", { scope: "col" }, t(/** @type {any} */ (key)))))),
      h("tbody", null, data.map((one) => {
        const speed = rate(one);
        return h("tr", null,
          h("td", null, h("a", { href: `#/journey/${encodeURIComponent(one.id)}` }, clock(one.received_at))),
          h("td.wrap", null, one.endpoint, h("br"), h("span.muted.tiny", null, one.model)),
          h("td.number", null, `${number(one.prompt_tokens)} → ${number(one.completion_tokens)}`, one.cached_tokens ? h("span.muted.tiny", null, h("br"), t("journey.cached-count", { count: one.cached_tokens })) : null),
          h("td.number", null, duration(one.stages.first_token)),
          h("td.number", null, speed === null ? "–" : number(speed, { maximumFractionDigits: 1 })),
          h("td.number", null, duration(one.stages.total)),
          h("td", null, one.status === "live" ? h("span.tag.live", null, t("journey.live")) : ended(one.outcome)));
      }))));
  }
}

class One extends Loader {
  choice = 0;

  async show() {
    const journey = await json(`/v1/journeys/${encodeURIComponent(this.id)}`, { signal: this.aborter.signal });
    // Reading a long one takes a while; drawing it is a task of its own.
    await new Promise((resolve) => setTimeout(resolve));
    if (this.aborter.signal.aborted) return;
    this.#draw(journey);
    if (journey.status === "live") this.later();
  }

  close() {
    super.close();
    this.replay?.stop();
  }

  /** @param {any} journey */
  #draw(journey) {
    this.replay?.stop();
    const sequence = journey.sequences[this.choice] ?? journey.sequences[0];
    fill(this.page, this.#head(journey), this.#figures(journey),
      this.app.about?.trail_text ? null : h("p.notice", null, t("journey.no-text")),
      sequence ? this.#parts(journey, sequence) : this.#elsewhere(journey));
  }

  /** @param {any} journey */
  #head(journey) {
    const said = h("span.unseen", { role: "status" });
    const link = h("button.button", { type: "button", on: { click: async () => {
      await navigator.clipboard.writeText(`${location.origin}${location.pathname}#/journey/${encodeURIComponent(journey.id)}`);
      link.textContent = said.textContent = t("copied");
      setTimeout(() => (link.textContent = t("journey.link")), 1500);
    } } }, t("journey.link"));
    const file = (/** @type {string} */ name, /** @type {() => any} */ make, /** @type {string} */ label) => h("button.button", { type: "button", on: { click: () => save(name, make()) } }, label);
    return h("header.page-head", null, h("h1", null, t("journey.title")), link, said,
      file(`${journey.id}.json`, () => journey, t("journey.json")), file(`${journey.id}.trace.json`, () => chromeTrace(journey), t("journey.trace")),
      h("p.lead", null, t("journey.lead")),
      h("p.journey-id.muted.small.wrap", null, h("span.mono", null, journey.id), ` · ${journey.model} · ${journey.endpoint}`));
  }

  /** @param {any} journey */
  #figures(journey) {
    const figure = (/** @type {any} */ key, /** @type {any} */ value, more = "") => value === null || value === undefined ? null : h("div", null, h("dt", null, t(key)), h("dd", null, value, more ? [" ", h("small", null, more)] : null));
    const speed = rate(journey);
    const outcome = journey.status === "live" ? t("journey.live") : ended(journey.outcome);
    return h("dl.figures.panel", null,
      figure("journey.total", duration(journey.stages.total)), figure("journey.first-token", duration(journey.stages.first_token)),
      figure("journey.rate", speed === null ? null : number(speed, { maximumFractionDigits: 1 })),
      figure("journey.prompt", number(journey.prompt_tokens), journey.cached_tokens ? t("journey.cached-count", { count: number(journey.cached_tokens) }) : ""),
      figure("journey.completion", number(journey.completion_tokens)), figure("journey.end", outcome),
      journey.drafted_tokens ? figure("journey.speculation", `${number(journey.accepted_tokens)}/${number(journey.drafted_tokens)}`, t("journey.drafted-right")) : null,
      journey.preemptions ? figure("stage.preempted", number(journey.preemptions)) : null,
      journey.resumptions ? figure("stage.resumed", number(journey.resumptions)) : null,
      journey.target ? figure("journey.target", journey.target) : null,
      figure("journey.seed", journey.seed === null ? null : String(journey.seed)));
  }

  /** Answered by a remote model, or from the cache of answers. @param {any} journey */
  #elsewhere(journey) {
    return [h("p.notice", null, t("journey.nothing", { by: journey.served_by })),
      h("section.panel.part", null, h("h2", null, t("journey.waterfall")), waterfall(journey, NO_SEQUENCE).element),
      journey.texts?.length ? h("section.panel.part", null, h("h2", null, t("chat.answer")), journey.texts.map((/** @type {string} */ text) => h("pre.rendered.wrap", { tabindex: "0", dir: "auto" }, text))) : null];
  }

  /** @param {any} journey @param {any} sequence */
  #parts(journey, sequence) {
    const steps = stepsOfTokens(sequence);
    const fall = waterfall(journey, sequence);
    const details = h("div.panel.details-panel", { "aria-live": "polite", role: "group", tabindex: "0", "aria-label": t("journey.answer-tokens") }, h("p.muted.small", null, t("journey.choose-token")));
    const answer = answerTokens(sequence, steps, (index) => fill(details, tokenDetails(journey, sequence, index, steps[index])));
    const { start, seconds } = span(journey);
    let came = -1;
    this.replay = replay(seconds, (at) => {
      fall.moveTo(at);
      const count = at === null ? null : sequence.tokens.filter((/** @type {any} */ token) => token.at - start <= at).length;
      if (count !== came) answer.upTo(count);
      came = count ?? -1;
    });
    const choices = journey.sequences.length > 1 ? h("div.row", { role: "group", "aria-label": t("journey.choices") }, journey.sequences.slice(0, 32).map((/** @type {any} */ one) =>
      h("button.button", { type: "button", "aria-pressed": String(one === sequence), on: { click: () => { this.choice = one.index; this.#draw(journey); } } }, t("journey.choice", { number: one.index + 1 })))) : null;
    const prompt = sequence.prompt_pieces || sequence.prompt ? h("section.panel.part", null, h("h2", null, t("journey.prompt-title")), h("p.hint", null, t("journey.prompt-lead")),
      sequence.prompt ? h("details", null, h("summary", null, t("journey.rendered")), h("pre.rendered.wrap", { tabindex: "0", dir: "auto" }, sequence.prompt)) : null,
      promptTokens(sequence)) : null;
    return [choices,
      h("section.panel.part", null, h("h2", null, t("journey.waterfall")), h("p.hint", null, t("journey.waterfall-lead")), this.replay.element, fall.element),
      prompt,
      h("div.answer-pair", null, h("section.panel.part", null, h("h2", null, t("journey.answer-title")), h("p.hint", { id: "token-keys" }, t("journey.answer-lead")), h("div.scale", { "aria-hidden": "true" }, h("span", null, t("journey.sure")), h("span.scale-bar"), h("span", null, t("journey.unsure"))), answer.element), details),
      h("section.panel.part", null, h("h2", null, t("journey.blocks-title")), h("p.hint", null, t("journey.blocks-lead")), blocksChart(journey, sequence))];
  }
}

/** Hand a file to the browser. @param {string} name @param {any} value */
function save(name, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 1)], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
