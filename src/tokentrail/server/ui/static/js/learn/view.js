/** How it works, on the real model: tokens, the draw of one token, memory. */

import { h } from "../dom.js";
import { t } from "../i18n.js";
import { drawLesson } from "./draw.js";
import { memoryLesson } from "./memory.js";
import { tokensLesson } from "./tokens.js";

/** @param {import("../main.js").App} app */
export function learnView(app) {
  const aborter = new AbortController();
  const lesson = (/** @type {any} */ title, /** @type {any} */ lead, /** @type {HTMLElement} */ element) => h("section.panel.part", null, h("h2", null, t(title)), h("p.hint", null, t(lead)), element);
  return {
    element: h("div.view", null, h("div.page", null, h("h1", null, t("nav.learn")), h("p.lead", null, t("learn.lead")),
      lesson("learn.tokens", "learn.tokens-lead", tokensLesson(app, aborter.signal)),
      lesson("learn.draw", "learn.draw-lead", drawLesson(app, aborter.signal)),
      lesson("learn.memory", "learn.memory-lead", memoryLesson(app, aborter.signal)))),
    close: () => aborter.abort(),
  };
}
