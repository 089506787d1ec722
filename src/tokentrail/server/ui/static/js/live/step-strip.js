/** The engine's last steps: a bar each, as high as its batch, as dark as it took long; one can be looked at. */

import { fill, h } from "../dom.js";
import { clock, duration, number } from "../format.js";
import { t } from "../i18n.js";

const MOST = 200;

export class StepStrip {
  constructor() {
    /** @type {any[]} */
    this.steps = [];
    /** @type {number | null} number of the chosen step; null: the newest */
    this.chosen = null;
    this.bars = h("div.bars", { role: "slider", tabindex: "0", "aria-label": t("live.steps"), "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, on: {
      pointermove: (/** @type {PointerEvent} */ event) => this.#point(event),
      pointerdown: (/** @type {PointerEvent} */ event) => this.#point(event),
      pointerleave: () => { this.chosen = null; this.#tell(); },
      keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
      blur: () => { this.chosen = null; this.#tell(); },
    } });
    this.told = h("p.step-told.small");
    this.most = h("span.level", { "aria-hidden": "true" });
    this.legend = h("p.legend.steps-legend", null, h("span.key-decode", null, t("live.key-decode")), h("span.key-reads", null, t("live.key-reads")), h("em", null, t("live.key-paler")));
    this.element = h("div.strip", null, h("div.plot", null, this.bars, this.most), this.legend, this.told);
    this.frame = 0;
    this.#tell();
  }

  close() {
    cancelAnimationFrame(this.frame);
  }

  /** @param {any[]} steps */
  add(steps) {
    if (!steps.length) return;
    if (this.steps.length && steps[0].number <= /** @type {any} */ (this.steps.at(-1)).number) this.steps = [];
    this.steps.push(...steps);
    this.steps.splice(0, this.steps.length - MOST);
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const most = Math.max(1, ...this.steps.map((step) => step.batch_sequences));
    this.most.textContent = t("live.steps-most", { count: number(most) });
    // One that took much longer than all others must not make these look alike.
    const slow = this.steps.map((step) => step.seconds).sort((a, b) => a - b)[Math.floor(this.steps.length * 0.95)];
    while (this.bars.childElementCount > this.steps.length) this.bars.lastChild.remove();
    while (this.bars.childElementCount < this.steps.length) this.bars.append(h("i"));
    this.steps.forEach((step, index) => {
      const bar = /** @type {HTMLElement} */ (this.bars.children[index]);
      bar.style.blockSize = `${Math.max(4, (step.batch_sequences / most) * 100)}%`;
      bar.style.opacity = String(0.35 + 0.65 * Math.min(1, step.seconds / slow));
      bar.className = step.batch_tokens > step.batch_sequences ? "reads" : "";
    });
    this.#tell();
  }

  #index() {
    const found = this.chosen === null ? -1 : this.steps.findIndex((step) => step.number === this.chosen);
    return found < 0 ? this.steps.length - 1 : found;
  }

  #tell() {
    const index = this.#index();
    const step = this.steps[index];
    this.bars.querySelector(".chosen")?.classList.remove("chosen");
    if (!step) {
      fill(this.told, t("live.no-steps"));
      return;
    }
    if (this.chosen !== null) this.bars.children[index]?.classList.add("chosen");
    const words = t("live.step", { number: number(step.number), time: clock(step.start_at), took: duration(step.seconds), sequences: step.batch_sequences, tokens: step.batch_tokens, blocks: step.blocks_used });
    this.bars.setAttribute("aria-valuemax", String(this.steps.length - 1));
    this.bars.setAttribute("aria-valuenow", String(index));
    this.bars.setAttribute("aria-valuetext", words);
    const own = step.journeys.slice(0, 16);
    fill(this.told, words, own.length ? [" ", t("live.whose"), " ", own.map((/** @type {string} */ id, /** @type {number} */ k) => [k ? ", " : "", h("a.mono", { href: `#/journey/${encodeURIComponent(id)}` }, id.slice(-8))])] : null,
      step.batch_sequences > step.journeys.length ? ` ${t("journey.others", { count: step.batch_sequences - step.journeys.length })}` : null);
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const box = this.bars.getBoundingClientRect();
    const width = box.width / MOST;
    const index = Math.floor((event.clientX - box.left) / width) - (MOST - this.steps.length);
    this.chosen = this.steps[Math.max(0, Math.min(this.steps.length - 1, index))]?.number ?? null;
    this.#tell();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -MOST, End: MOST }[event.key];
    if (by === undefined || !this.steps.length) return;
    event.preventDefault();
    this.chosen = this.steps[Math.max(0, Math.min(this.steps.length - 1, this.#index() + by))].number;
    this.#tell();
  }
}
