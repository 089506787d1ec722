/** A text, its tokens, their ids and bytes. */

import { json } from "../api.js";
import { fill, h, uid } from "../dom.js";
import { number, visible } from "../format.js";
import { t } from "../i18n.js";
import { later } from "./later.js";

const MOST = 2000;

/** @param {import("../main.js").App} app @param {AbortSignal} ended */
export function tokensLesson(app, ended) {
  const id = uid("text");
  const box = h("textarea", { id, rows: 3, dir: "auto", on: { input: () => look(200) } });
  box.value = t("learn.sample");
  const list = h("ol.chips", { "aria-label": t("learn.tokens") });
  const said = h("p.small.muted", { role: "status" });
  const look = later(
    async (signal) => (await json("/tokenize", { body: { content: box.value, with_pieces: true }, signal })).tokens,
    (pieces) => {
      const bytes = new TextEncoder().encode(box.value).length;
      said.textContent = t("learn.counted", { tokens: number(pieces.length), characters: number([...box.value].length), bytes: number(bytes) });
      fill(list, pieces.slice(0, MOST).map(chip), pieces.length > MOST ? h("li.muted.small", null, "…") : null);
    },
    (error) => (said.textContent = error.message),
    ended,
  );
  look(0);
  return h("div.lesson", null, h("div.field", null, h("label", { for: id }, t("learn.text")), box), said, list);
}

/** @param {{ id: number, piece: string | number[] }} piece */
function chip({ id, piece }) {
  const bytes = typeof piece === "string" ? [...new TextEncoder().encode(piece)] : piece;
  const shown = typeof piece === "string" ? visible(piece) : "�";
  return h("li.chip", null, h("span.chip-text", { dir: "auto" }, shown), h("span.chip-id", null, String(id)),
    h("span.chip-bytes", null, bytes.slice(0, 16).map((byte) => byte.toString(16).padStart(2, "0")).join(" ") + (bytes.length > 16 ? " …" : "")));
}
