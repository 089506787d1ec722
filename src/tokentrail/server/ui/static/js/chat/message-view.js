/** One message on the page; an answer grows while it comes, at most once a frame. */

import { h } from "../dom.js";
import { duration, number } from "../format.js";
import { t } from "../i18n.js";
import { MarkdownStream } from "../markdown.js";

/** Characters drawn in one frame: what came while the page was hidden is caught up in several. */
const MOST_PER_FRAME = 6000;

/**
 * @param {import("./conversations.js").Message} message
 * @param {{ run: import("./answer-run.js").AnswerRun | undefined, edit: ((text: string) => void) | null,
 *   again: (() => void) | null, grown: () => void }} options
 */
export function messageView(message, options) {
  return message.role === "user" ? question(message, options.edit) : new AnswerView(message, options).element;
}

/** @param {import("./conversations.js").Message} message @param {((text: string) => void) | null} edit */
function question(message, edit) {
  const text = h("div.said.wrap", { dir: "auto" }, message.content);
  const article = h("article.question", { "aria-label": t("chat.you") }, text);
  if (edit === null) return article;
  const tools = h("div.tools", null, h("button.plain", { type: "button", on: { click: open } }, t("chat.edit")));
  article.append(tools);
  function open() {
    const box = h("textarea", { rows: Math.min(12, message.content.split("\n").length + 1), "aria-label": t("chat.edit"), dir: "auto" });
    box.value = message.content;
    const close = () => article.replaceChildren(text, tools);
    const form = h("form.editing", { on: {
      submit: (/** @type {Event} */ event) => { event.preventDefault(); if (box.value.trim()) /** @type {any} */ (edit)(box.value); },
      keydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Escape") { event.stopPropagation(); close(); tools.firstChild.focus(); }
        else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
      },
    } }, box, h("div.row", null, h("button.button.primary", { type: "submit" }, t("chat.resend")), h("button.button", { type: "button", on: { click: close } }, t("cancel"))));
    article.replaceChildren(form);
    box.focus();
  }
  return article;
}

class AnswerView {
  /** @param {import("./conversations.js").Message} message @param {any} options */
  constructor(message, { run, again, grown }) {
    this.message = message;
    this.again = again;
    this.grown = grown;
    this.thoughts = h("div.thoughts-text.wrap", { dir: "auto" });
    this.details = h("details.thoughts", null, h("summary", null, t("chat.thoughts")), this.thoughts);
    this.body = h("div.prose.wrap");
    this.foot = h("footer.answer-foot");
    this.element = h("article.answer", { "aria-label": t("chat.answer") }, this.details, this.body, this.foot);
    this.reset();
    if (run) {
      run.addEventListener("content", (/** @type {any} */ event) => this.#wait("content", event.detail));
      run.addEventListener("reasoning", (/** @type {any} */ event) => this.#wait("reasoning", event.detail));
      run.addEventListener("reset", () => this.reset());
      run.addEventListener("status", () => this.#status());
    }
    this.#status();
  }

  /** Draw all of it anew. */
  reset() {
    this.waiting = { content: this.message.content, reasoning: this.message.reasoning ?? "" };
    this.body.replaceChildren();
    this.thoughts.replaceChildren();
    this.thoughtText = document.createTextNode("");
    this.thoughts.append(this.thoughtText);
    this.markdown = new MarkdownStream(this.body);
    this.ended = false;
    this.#later();
  }

  get over() {
    return this.message.status !== "streaming" && this.message.status !== "waiting";
  }

  /** @param {"content" | "reasoning"} name @param {string} text */
  #wait(name, text) {
    this.waiting[name] += text;
    this.#later();
  }

  #later() {
    if (this.scheduled) return;
    this.scheduled = true;
    const draw = () => {
      this.scheduled = false;
      this.#draw();
    };
    // Hidden pages get no frames.
    if (document.hidden) setTimeout(draw, 200);
    else requestAnimationFrame(draw);
  }

  #draw() {
    const { content, reasoning } = this.waiting;
    if (reasoning) {
      this.thoughtText.appendData(reasoning);
      this.waiting.reasoning = "";
    }
    if (content) {
      let cut = Math.min(content.length, MOST_PER_FRAME);
      const code = content.charCodeAt(cut - 1);
      if (cut < content.length && code >= 0xd800 && code < 0xdc00) cut -= 1;
      this.markdown.append(content.slice(0, cut));
      this.waiting.content = content.slice(cut);
    }
    this.details.classList.toggle("hidden", !this.thoughtText.data);
    if (this.waiting.content) this.#later();
    else if (this.over && !this.ended) {
      this.ended = true;
      this.markdown.end();
    }
    this.grown();
  }

  #status() {
    const { message } = this;
    this.element.setAttribute("aria-busy", String(!this.over));
    this.element.classList.toggle("coming", message.status === "streaming");
    this.element.dataset.status = message.status ?? "done";
    this.foot.replaceChildren(...this.#footer());
    this.#later();
  }

  #footer() {
    const { message } = this;
    const parts = [];
    if (message.notice) parts.push(h("p.notice", null, message.notice));
    if (message.status === "waiting") parts.push(h("p.notice", { role: "status" }, t("chat.waiting")));
    if (message.status === "failed") parts.push(h("p.notice.bad", { role: "alert" }, message.error ?? ""));
    if (!this.over) return parts;
    const facts = [];
    if (message.status === "stopped") facts.push(t("chat.stopped"));
    if (message.finish === "length") facts.push(t("chat.cut"));
    if (message.tokens) facts.push(t("chat.tokens", { count: number(message.tokens) }));
    const rate = message.tokens && message.tokens > 1 && message.seconds ? (message.tokens - 1) / message.seconds : 0;
    if (rate && message.firstToken) facts.push(t("chat.rate", { rate: number(rate, { maximumFractionDigits: 1 }) }));
    if (message.firstToken) facts.push(t("chat.first", { time: duration(message.firstToken) }));
    const tools = [
      message.journey ? h("a.plain", { href: `#/journey/${encodeURIComponent(message.journey)}` }, t("chat.journey")) : null,
      this.again ? h("button.plain", { type: "button", on: { click: this.again } }, t("chat.again")) : null,
      message.content ? h("button.plain", { type: "button", on: { click: (/** @type {any} */ event) => this.#copy(event.target) } }, t("copy")) : null,
    ].filter(Boolean);
    parts.push(h("div.answer-facts", null, h("span.muted.tiny", null, facts.join(" · ")), h("span.tools", null, tools)));
    return parts;
  }

  /** @param {HTMLElement} button */
  async #copy(button) {
    await navigator.clipboard.writeText(this.message.content);
    button.textContent = t("copied");
    setTimeout(() => (button.textContent = t("copy")), 1500);
  }
}
