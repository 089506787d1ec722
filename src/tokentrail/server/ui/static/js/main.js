/** Starts the page: its frame, its views by the address behind `#`, the key. */

import { apiKey, json, onKeyNeeded, setApiKey } from "./api.js";
import { chatView } from "./chat/view.js";
import { Conversations } from "./chat/conversations.js";
import { fill, h, icon, svg, uid } from "./dom.js";
import { chooseLanguage, currentLanguage, startLanguage, t } from "./i18n.js";
import { journeyView } from "./journey/view.js";
import { learnView } from "./learn/view.js";
import { liveView } from "./live/view.js";
import { isDark, startTheme, switchTheme } from "./theme.js";
import { hasUsage, usageView } from "./usage/view.js";

/**
 * What the server says of itself.
 * @typedef {{ version: string, trail_text: boolean, trail_size: number, keys: boolean, admin: boolean, admin_api: boolean, ledger: boolean, gateway: boolean,
 *   models: { id: string, max_model_len: number, num_parameters: number, defaults: Record<string, number>, [name: string]: any }[] }} About
 * @typedef {{ element: HTMLElement, close?: () => void, focus?: () => void }} View
 */

/** @type {Record<string, (app: App, rest: string) => View>} */
const VIEWS = { chat: chatView, journey: journeyView, live: liveView, learn: learnView, usage: usageView };

export class App {
  constructor() {
    this.conversations = new Conversations();
    /** @type {About | null} */
    this.about = null;
    this.wideSettings = true;
    /** @type {View | null} */
    this.view = null;
    this.stage = h("main.stage", { id: "stage", tabindex: "-1" });
    this.rail = h("nav.rail", { "aria-label": t("views") });
    this.settled = false;
  }

  async start() {
    onKeyNeeded((wrong) => this.#askKey(wrong));
    fill(document.body, h("a.skip", { href: "#stage", on: { click: (/** @type {Event} */ event) => { event.preventDefault(); this.stage.focus(); } } }, t("skip")),
      h("div.frame", null, this.rail, this.stage));
    this.#drawRail();
    addEventListener("hashchange", () => this.#route());
    await this.#ask();
    await this.conversations.load();
    this.#drawRail();
    this.#route();
  }

  async #ask() {
    for (;;) {
      try {
        this.about = await json("/v1/about");
        return;
      } catch (error) {
        const wait = /** @type {any} */ (error).passing;
        fill(this.stage, h("div.page", null, h("p.notice", { role: "status" }, wait ? t("starting") : String(/** @type {any} */ (error).message)),
          wait ? null : h("p", null, h("button.button", { type: "button", on: { click: () => location.reload() } }, t("retry")))));
        if (!wait) return;
        await new Promise((resolve) => setTimeout(resolve, 700));
      }
    }
  }

  /** Change the address without drawing its view, which is there already. @param {string} hash */
  replaceHash(hash) {
    if (location.hash === hash) return;
    history.replaceState(null, "", hash);
    this.shown = hash;
    this.#drawRail();
  }

  #route() {
    if (this.about === null) return;
    const [asked, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
    const name = asked === "usage" && !hasUsage(this.about) ? "" : asked;
    const make = VIEWS[name] ?? chatView;
    this.shown = location.hash;
    this.view?.close?.();
    this.view = make(this, safeDecode(rest.join("/")));
    fill(this.stage, this.view.element);
    const key = /** @type {"nav.chat"} */ (`nav.${name in VIEWS ? name : "chat"}`);
    document.title = `${t(key)} – Tokentrail`;
    this.#drawRail();
    if (this.settled && this.view.focus === undefined) this.stage.focus({ preventScroll: true });
    else this.view.focus?.();
    this.settled = true;
  }

  /** Draw everything anew, in the language chosen now. */
  redraw() {
    this.#drawRail();
    this.#route();
  }

  #drawRail() {
    const current = location.hash.replace(/^#\/?/, "").split("/")[0] || "chat";
    const names = ["chat", "journey", "live", "learn", ...(this.about && hasUsage(this.about) ? ["usage"] : [])];
    const focused = this.rail.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.name : null;
    this.rail.setAttribute("aria-label", t("views"));
    fill(this.rail, h("div.brand", null, mark(), "Tokentrail"),
      h("ul.tabs", null, names.map((name) => h("li", null, h("a", { href: `#/${name}`, "data-name": name, "aria-current": name === current ? "page" : null },
        icon(/** @type {any} */ (name)), h("span", null, t(/** @type {any} */ (`nav.${name}`))))))),
      h("div.settings", null,
        this.about?.keys || apiKey() ? this.#setting("key", "key", t(apiKey() ? "key.change" : "key.enter"), () => this.#changeKey()) : null,
        this.#setting("theme", isDark() ? "sun" : "moon", t(isDark() ? "theme.light" : "theme.dark"), () => { switchTheme(); this.#drawRail(); }),
        this.#setting("language", "language", currentLanguage() === "en" ? "中文" : "English", () => { chooseLanguage(currentLanguage() === "en" ? "zh" : "en"); this.redraw(); })));
    if (focused) /** @type {HTMLElement | null} */ (this.rail.querySelector(`[data-name="${focused}"]`))?.focus();
  }

  /** @param {string} name @param {any} sign @param {string} label @param {() => void} click */
  #setting(name, sign, label, click) {
    const language = name === "language" ? { lang: currentLanguage() === "en" ? "zh-CN" : "en" } : {};
    return h(`button.plain.${name}`, { type: "button", "data-name": name, ...language, on: { click } }, icon(sign), h("span", null, label));
  }

  async #changeKey() {
    if (!(await this.#askKey(false))) return;
    this.about = null;
    await this.#ask();
    this.redraw();
  }

  /** @param {boolean} wrong the one that was tried is refused @returns {Promise<boolean>} */
  #askKey(wrong) {
    // Several requests may be refused at once: one question for all.
    this.asking ??= new Promise((resolve) => {
      const id = uid("key");
      const box = h("input", { id, type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": `${id}-hint` });
      const dialog = h("dialog", { "aria-labelledby": `${id}-title`, on: { close: () => finish(dialog.returnValue === "ok") } },
        h("form.key-form", { method: "dialog", on: { submit: (/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          if (/[^\x21-\x7e]/.test(box.value.trim())) { said.textContent = t("key.signs"); return; }
          dialog.close("ok");
        } } },
          h("h2", { id: `${id}-title` }, t("key.title")),
          h("p.fault", { role: "alert" }, wrong ? t("key.wrong") : ""),
          h("div.field", null, h("label", { for: id }, t("key.label")), box, h("p.hint", { id: `${id}-hint` }, t("key.hint"))),
          h("p.fault.small", { role: "alert" }),
          h("div.row", null, h("button.button.primary", { type: "submit" }, t("key.use")), h("button.button", { type: "button", on: { click: () => dialog.close("") } }, t("cancel")))));
      const said = dialog.querySelectorAll(".fault")[1];
      const finish = (/** @type {boolean} */ given) => {
        if (given) setApiKey(box.value.trim());
        dialog.remove();
        this.asking = null;
        resolve(given);
      };
      document.body.append(dialog);
      dialog.showModal();
      box.focus();
    });
    return this.asking;
  }
}

/** Part of an address, which anybody may have written. @param {string} text */
function safeDecode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function mark() {
  const dot = (/** @type {number[]} */ [x, y, r, o]) => svg("circle", { cx: x, cy: y, r, fill: "currentColor", opacity: o });
  return svg("svg", { viewBox: "4 6 24 20", "aria-hidden": "true", class: "mark" }, [[8, 22, 2, 0.4], [13, 17.5, 2.3, 0.6], [18.5, 14.5, 2.5, 0.8], [24.5, 10, 3.2, 1]].map(dot));
}

startTheme();
startLanguage();
void new App().start();
