/** The KV blocks of one engine, a cell each, drawn on a canvas: there may be thousands. */

import { fill, h } from "../dom.js";
import { number } from "../format.js";
import { t } from "../i18n.js";

const CELL = 9;
const GAP = 2;
const STATES = { f: "free", c: "cached", u: "used", s: "shared" };

export class BlockMap {
  constructor() {
    this.canvas = h("canvas.block-map", { role: "img" });
    this.legend = h("figcaption.legend.blocks-legend");
    this.element = h("figure.chart", null, this.canvas, this.legend);
    this.resized = new ResizeObserver(() => this.#draw());
    this.resized.observe(this.element);
    /** @type {any} */
    this.blocks = null;
  }

  /** @param {any} blocks */
  show(blocks) {
    this.blocks = blocks;
    const counts = { free: blocks.free, cached: blocks.cached, used: blocks.used, shared: blocks.shared };
    const words = Object.entries(counts).map(([name, count]) => t(/** @type {any} */ (`live.block.${name}`), { count: number(count) }));
    this.canvas.setAttribute("aria-label", words.join(", "));
    fill(this.legend, Object.keys(counts).map((name, index) => h(`span.key-${name}`, null, words[index])), blocks.blocks_per_cell > 1 ? h("em", null, t("live.per-cell", { count: blocks.blocks_per_cell })) : null);
    this.#draw();
  }

  #draw() {
    const width = this.element.clientWidth;
    if (!this.blocks || !width) return;
    const { cells } = this.blocks;
    const columns = Math.max(1, Math.floor((width + GAP) / (CELL + GAP)));
    const rows = Math.ceil(cells.length / columns);
    const scale = devicePixelRatio || 1;
    const height = rows * (CELL + GAP);
    const { canvas } = this;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
    }
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.element);
    /** @type {Record<string, string>} */
    const colors = {};
    for (const [letter, name] of Object.entries(STATES)) colors[letter] = style.getPropertyValue(`--block-${name}`);
    for (let at = 0; at < cells.length; at += 1) {
      pen.fillStyle = colors[cells[at]];
      pen.fillRect((at % columns) * (CELL + GAP), Math.floor(at / columns) * (CELL + GAP), CELL, CELL);
    }
  }
}
