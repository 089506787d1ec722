/** Questions that stand before the page until they are answered. */

import { h, uid } from "./dom.js";
import { t } from "./i18n.js";

/**
 * A dialog with a form in it. What `accept` throws is told in it, and it stays open.
 * @param {{ title: string, body: any, action: string, danger?: boolean, accept?: () => unknown, cancel?: string | null }} question
 * @returns {Promise<boolean>} whether it was accepted
 */
export function ask({ title, body, action, danger = false, accept = () => undefined, cancel = t("cancel") }) {
  return new Promise((resolve) => {
    const id = uid("dialog");
    const said = h("p.fault.small.wrap", { role: "alert" });
    const button = h(`button.button.${danger ? "danger" : "primary"}`, { type: "submit" }, action);
    const dialog = h("dialog", { "aria-labelledby": id, on: { close: () => { dialog.remove(); resolve(dialog.returnValue === "ok"); } } },
      h("form.dialog-form", { method: "dialog", on: { submit: async (/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        button.disabled = true;
        try {
          await accept();
          dialog.close("ok");
        } catch (error) {
          said.textContent = String(/** @type {any} */ (error).message);
          button.disabled = false;
        }
      } } },
        h("h2", { id }, title), body, said,
        h("div.row", null, button, cancel === null ? null : h("button.button", { type: "button", on: { click: () => dialog.close("") } }, cancel))));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * A labelled field.
 * @param {string} label @param {HTMLElement} element @param {string} [hint]
 */
export function field(label, element, hint) {
  element.id ||= uid("field");
  const hintId = `${element.id}-hint`;
  if (hint) element.setAttribute("aria-describedby", hintId);
  return h("div.field", null, h("label", { for: element.id }, label), element, hint ? h("p.hint", { id: hintId }, hint) : null);
}
