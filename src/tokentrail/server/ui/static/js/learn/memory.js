/** What a model takes of memory: weights, KV cache, buffers, and what fits. */

import { json } from "../api.js";
import { fill, h, uid } from "../dom.js";
import { bytes, number } from "../format.js";
import { t } from "../i18n.js";

/** @param {import("../main.js").App} app @param {AbortSignal} ended */
export function memoryLesson(app, ended) {
  const box = h("div.lesson", null, h("p.small.muted", null, t("learn.measuring")));
  void json("/v1/learn/memory", { signal: ended }).then(
    (facts) => fill(box, calculator(facts)),
    (error) => { if (!ended.aborted) fill(box, h("p.notice", null, error.message)); },
  );
  return box;
}

/** @param {any} facts */
function calculator(facts) {
  const choices = [{ name: t("learn.as-served", { format: facts.stored_as }), bytes: facts.weights }, ...facts.formats];
  const select = (/** @type {any[]} */ options) => h("select", { on: { change: () => show() } }, options.map(([value, label, chosen]) => h("option", { value, selected: Boolean(chosen) }, label)));
  const format = select(choices.map((one, index) => [index, one.name]));
  const cache = select(Object.keys(facts.kv_bytes_per_token).map((name) => [name, name, name === facts.kv_dtype]));
  const range = (/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ value) => h("input", { type: "range", min: 0, max: 1000, value: Math.round((Math.log(value / low) / Math.log(high / low)) * 1000), on: { input: () => show() } });
  const most = Math.max(facts.max_context, 1024);
  const context = range(128, most, Math.min(most, 2048));
  const sequences = range(1, 256, 8);
  const scaled = (/** @type {HTMLInputElement} */ slider, /** @type {number} */ low, /** @type {number} */ high) => Math.round(low * (high / low) ** (Number(slider.value) / 1000));
  const bar = h("div.memory-bar", { "aria-hidden": "true" });
  const sum = h("div.memory-sum", { "aria-live": "polite" });
  const contextShown = h("output");
  const sequencesShown = h("output");
  const labelled = (/** @type {any} */ key, /** @type {HTMLElement} */ element, /** @type {Node | null} */ output = null) => {
    element.id = uid("memory");
    return h("div.knob", null, h("label", { for: element.id }, t(key)), output ?? h("span"), element);
  };
  function show() {
    const weights = choices[Number(format.value)].bytes;
    const perToken = facts.kv_bytes_per_token[cache.value];
    const tokens = Math.ceil(scaled(context, 128, most) / facts.block_size) * facts.block_size;
    const count = scaled(sequences, 1, 256);
    contextShown.textContent = number(tokens);
    sequencesShown.textContent = number(count);
    const kv = perToken * tokens * count;
    const total = weights + kv + facts.buffers;
    const scale = Math.max(total, facts.usable);
    const part = (/** @type {string} */ kind, /** @type {number} */ size) => {
      const element = h(`i.${kind}`);
      element.style.inlineSize = `${(size / scale) * 100}%`;
      return element;
    };
    const limit = h("b");
    limit.style.insetInlineStart = `${(facts.usable / scale) * 100}%`;
    fill(bar, part("weights", weights), part("kv", kv), part("buffers", facts.buffers), limit);
    bar.classList.toggle("over", total > facts.usable);
    const room = Math.max(0, facts.usable - weights - facts.buffers);
    const row = (/** @type {string} */ kind, /** @type {any} */ key, /** @type {number} */ size, /** @type {string} */ how) => h("tr", null, h("th", { scope: "row" }, h(`span.swatch.${kind}`, { "aria-hidden": "true" }), t(key)), h("td.muted", null, how), h("td.number", null, bytes(size)));
    fill(sum, h("table", null, h("tbody", null,
      row("weights", "learn.weights", weights, t("learn.weights-how", { parameters: number(facts.parameters, { notation: "compact" }), bits: number((8 * weights) / facts.parameters, { maximumFractionDigits: 2 }) })),
      row("kv", "learn.kv", kv, t("learn.kv-how", { layers: facts.layers, heads: facts.kv_heads, dim: facts.head_dim, each: bytes(perToken), tokens: number(tokens), sequences: number(count) })),
      row("buffers", "learn.buffers", facts.buffers, t("learn.buffers-how")),
      h("tr.total", null, h("th", { scope: "row" }, t("learn.total")), h("td.muted", null, t(total > facts.usable ? "learn.too-much" : "learn.fits", { usable: bytes(facts.usable), free: bytes(facts.free) })), h("td.number", null, bytes(total))))),
      h("p.small.muted", null, t("learn.room", { tokens: number(Math.floor(room / perToken)), sequences: number(Math.floor(room / (perToken * tokens))) })));
  }
  show();
  return [h("div.knobs", null, labelled("learn.format", format), labelled("learn.cache-type", cache), labelled("learn.context", context, contextShown), labelled("learn.sequences", sequences, sequencesShown)), bar, sum];
}
