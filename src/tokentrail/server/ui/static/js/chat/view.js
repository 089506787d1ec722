/** The chat: conversations at the side, messages, the composer, and the settings of the conversation. */

import { fill, h, icon, iconButton, uid } from "../dom.js";
import { number } from "../format.js";
import { t } from "../i18n.js";
import { titleOf } from "./conversations.js";
import { messageView } from "./message-view.js";
import { parameterFields } from "./parameters.js";

/** Parameters below which answers are often wrong. */
const SMALL = 1e9;

/**
 * @param {import("../main.js").App} app @param {string} id of a conversation; empty: a new one
 * @returns {{ element: HTMLElement, close: () => void, focus: () => void }}
 */
export function chatView(app, id) {
  return new ChatView(app, id);
}

class ChatView {
  /** @param {import("../main.js").App} app @param {string} id */
  constructor(app, id) {
    this.app = app;
    this.conversations = app.conversations;
    this.conversation = this.conversations.get(id);
    if (!this.conversation.model || !app.about?.models.some((model) => model.id === this.conversation.model)) {
      if (!this.conversation.messages.length || !this.conversation.model) this.conversation.model = app.about?.models[0]?.id ?? "";
    }
    this.conversation.parameters.alternatives ??= Boolean(app.about?.trail_text);
    this.list = h("ul.conversation-list");
    this.log = h("div.log", { role: "log", "aria-label": t("chat.messages"), "aria-live": "polite" });
    this.scroller = h("div.scroller", { tabindex: "-1", on: { scroll: () => this.#scrolled() } }, this.log);
    this.composer = this.#composer();
    this.side = h("aside.side.conversations", { "aria-label": t("chat.conversations") },
      h("div.side-head", null, h("h2", null, t("chat.conversations")), this.#closer("conversations")),
      h("a.button.new-chat", { href: "#/chat", on: { click: () => this.conversations.fresh(this.conversation) } }, icon("plus"), t("chat.new")), this.list);
    this.settings = h("aside.side.settings-panel", { "aria-label": t("chat.settings") });
    this.title = h("h1.chat-title", { dir: "auto" });
    this.model = h("span.chat-model.muted.small");
    this.element = h("div.chat", null, this.side,
      h("section.talk", null,
        h("header.talk-head", null, iconButton("menu", t("chat.conversations"), () => this.#open("conversations")), this.title, this.model,
          iconButton("tune", t("chat.settings"), () => this.#open("settings"))),
        this.scroller, this.composer),
      this.settings);
    this.element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => this.#key(event));
    this.atEnd = true;
    this.changed = () => this.#draw();
    this.conversations.addEventListener("change", this.changed);
    this.resized = new ResizeObserver(() => this.#follow());
    this.resized.observe(this.scroller);
    if (app.wideSettings && matchMedia("(min-width: 1400px)").matches) this.element.classList.add("with-settings");
    this.#fillSettings();
    this.#draw();
  }

  close() {
    this.conversations.removeEventListener("change", this.changed);
    this.resized.disconnect();
  }

  focus() {
    if (matchMedia("(min-width: 761px)").matches) this.text.focus();
  }

  get run() {
    return this.conversations.runs.get(this.conversation.id);
  }

  // --- drawing ---------------------------------------------------------------------------------

  #draw() {
    this.#drawList();
    this.#drawMessages();
    this.title.textContent = titleOf(this.conversation);
    this.model.textContent = this.conversation.model;
    const running = this.run !== undefined;
    this.sendButton.classList.toggle("hidden", running);
    this.stopButton.classList.toggle("hidden", !running);
    this.#sendable();
  }

  #drawList() {
    fill(this.list, this.conversations.list().map((conversation) => h("li", null,
      h("a.wrap", { href: `#/chat/${conversation.id}`, "aria-current": conversation === this.conversation ? "page" : null, dir: "auto" },
        h("span", null, titleOf(conversation)), this.conversations.runs.has(conversation.id) ? h("span.pulse", { role: "img", "aria-label": t("chat.running") }) : null),
      iconButton("trash", t("chat.delete", { title: titleOf(conversation) }), () => this.#remove(conversation)))));
  }

  #drawMessages() {
    const { messages } = this.conversation;
    // Messages that are shown already stay: only what is new, or cut off, changes.
    this.drawn ??= [];
    let same = 0;
    while (same < this.drawn.length && this.drawn[same].message === messages[same] && same < messages.length) same += 1;
    for (const gone of this.drawn.splice(same)) gone.element.remove();
    if (!messages.length) {
      fill(this.log, this.#welcome());
      return;
    }
    if (!same) this.log.replaceChildren();
    messages.slice(same).forEach((message, offset) => {
      const index = same + offset;
      const element = messageView(message, {
        run: message === messages.at(-1) ? this.run : undefined,
        edit: (text) => this.#resend(index, text),
        again: () => this.#resend(index - 1, messages[index - 1].content),
        grown: () => this.#follow(),
      });
      this.drawn.push({ message, element });
      this.log.append(element);
    });
    this.#follow();
  }

  #welcome() {
    const model = this.app.about?.models.find((one) => one.id === this.conversation.model);
    const ask = (/** @type {string} */ text) => h("li", null, h("button.button", { type: "button", on: { click: () => this.#send(text) } }, text));
    return h("div.welcome", null,
      h("p.welcome-title", null, t("chat.welcome")),
      h("p.muted", null, t("chat.welcome-lead")),
      model ? h("p.muted.small", null, t("chat.model-facts", { model: model.id, parameters: number(model.num_parameters, { notation: "compact" }), context: number(model.max_model_len) }), model.num_parameters < SMALL ? ` ${t("chat.small-model")}` : null) : null,
      h("ul.suggestions", null, ask(t("chat.suggestion-1")), ask(t("chat.suggestion-2")), ask(t("chat.suggestion-3"))));
  }

  /** Stay at the end, unless the reader has gone elsewhere. */
  #follow() {
    if (this.atEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  #scrolled() {
    this.atEnd = this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 48;
  }

  // --- asking ----------------------------------------------------------------------------------

  #composer() {
    const id = uid("question");
    this.text = h("textarea", { id, rows: 1, placeholder: t("chat.placeholder"), dir: "auto", enterkeyhint: "send", on: {
      input: () => this.#sendable(),
      keydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          this.#send(this.text.value);
        }
      },
    } });
    this.text.value = this.conversation.unsent ?? "";
    this.sendButton = h("button.send", { type: "submit", "aria-label": t("chat.send"), title: t("chat.send") }, icon("send"));
    this.stopButton = h("button.send.stop.hidden", { type: "button", "aria-label": t("chat.stop"), title: t("chat.stop"), on: { click: () => this.#stop() } }, icon("stop"));
    return h("form.composer", { on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); this.#send(this.text.value); } } },
      h("div.composer-box", null, h("label.unseen", { for: id }, t("chat.placeholder")), this.text, this.sendButton, this.stopButton),
      h("p.hint", null, t("chat.keys")));
  }

  #sendable() {
    this.sendButton.disabled = !this.text.value.trim();
  }

  /** @param {string} text */
  #send(text) {
    if (!text.trim() || this.run) return;
    this.text.value = "";
    this.atEnd = true;
    this.conversations.ask(this.conversation, text);
    this.app.replaceHash(`#/chat/${this.conversation.id}`);
    this.text.focus();
  }

  /** @param {number} index @param {string} text */
  #resend(index, text) {
    this.atEnd = true;
    this.conversations.resend(this.conversation, index, text);
    this.text.focus();
  }

  #stop() {
    this.conversations.stop(this.conversation);
    this.text.focus();
  }

  /** @param {import("./conversations.js").Conversation} conversation */
  async #remove(conversation) {
    if (!confirm(t("chat.delete-sure", { title: titleOf(conversation) }))) return;
    await this.conversations.remove(conversation.id);
    if (conversation === this.conversation) location.hash = "#/chat";
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key !== "Escape") return;
    if (this.element.classList.contains("show-conversations") || this.element.classList.contains("show-settings")) this.#shut();
    else if (this.run) this.#stop();
  }

  // --- panels ----------------------------------------------------------------------------------

  /** @param {"conversations" | "settings"} which */
  #open(which) {
    if (which === "settings" && matchMedia("(min-width: 1400px)").matches) {
      this.app.wideSettings = this.element.classList.toggle("with-settings");
      return;
    }
    this.opener = document.activeElement;
    this.element.classList.remove("show-conversations", "show-settings");
    this.element.classList.add(`show-${which}`);
    const panel = which === "settings" ? this.settings : this.side;
    panel.querySelector("a, button, input, select")?.focus();
  }

  #shut() {
    this.element.classList.remove("show-conversations", "show-settings");
    /** @type {any} */ (this.opener)?.focus?.();
  }

  /** @param {string} which */
  #closer(which) {
    const button = iconButton("close", t("close"), () => this.#shut());
    button.classList.add("closer", which);
    return button;
  }

  #fillSettings() {
    const { conversation, app } = this;
    const models = app.about?.models ?? [];
    const model = models.find((one) => one.id === conversation.model) ?? models[0];
    const changed = () => this.conversations.save(conversation);
    const choice = uid("model");
    const select = h("select", { id: choice, on: { change: () => { conversation.model = select.value; changed(); this.#fillSettings(); this.#draw(); } } },
      models.map((one) => h("option", { value: one.id, selected: one.id === conversation.model }, one.id)));
    const system = uid("system");
    const box = h("textarea", { id: system, rows: 3, placeholder: t("chat.system-placeholder"), dir: "auto", on: { input: () => { conversation.system = box.value; changed(); } } });
    box.value = conversation.system;
    fill(this.settings,
      h("div.side-head", null, h("h2", null, t("chat.settings")), this.#closer("settings")),
      h("div.field", null, h("label", { for: choice }, t("chat.model")), select),
      h("div.field", null, h("label", { for: system }, t("chat.system")), box, h("p.hint", null, t("explain.system"))),
      h("h3.parameters-title", null, t("chat.parameters")),
      h("p.hint", null, t("explain.order")),
      parameterFields(conversation.parameters, model?.defaults ?? {}, { changed, context: model?.max_model_len ?? 4096, trailText: Boolean(app.about?.trail_text) }));
  }
}
