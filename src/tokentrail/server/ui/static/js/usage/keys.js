/** Keys and tenants: made, changed, rotated, revoked. */

import { ask, field } from "../dialog.js";
import { h } from "../dom.js";
import { number, short } from "../format.js";
import { language, t } from "../i18n.js";
import { get, send } from "./admin.js";
import { limitFields, limitUse } from "./limits.js";
import { money } from "./sums.js";

/**
 * @typedef {{ keys: any[], tenants: any[], byKey: Map<string, import("./sums.js").Sum>, days: number, costs: boolean, again: () => unknown }} Facts
 */

/** @param {Facts} facts */
export function keysTable(facts) {
  const head = (/** @type {any} */ key, number = false) => h(`th${number ? ".number" : ""}`, { scope: "col" }, t(key));
  return h("table.keys", null,
    h("thead", null, h("tr", null, head("usage.key"), head("usage.tenant"), head("usage.may"), head("usage.last-used"), head("usage.requests", true), head("usage.tokens", true), facts.costs ? head("usage.cost", true) : null, h("th", null, h("span.unseen", null, t("usage.actions"))))),
    h("tbody", null, facts.keys.map((key) => keyRow(key, facts))));
}

/** @param {any} key @param {Facts} facts */
function keyRow(key, facts) {
  const sum = facts.byKey.get(key.id);
  const name = key.name || t("usage.unnamed");
  const act = (/** @type {any} */ word, /** @type {() => unknown} */ click, danger = false) =>
    h(`button.plain${danger ? ".fault" : ""}`, { type: "button", "aria-label": `${t(word)}: ${name}`, on: { click } }, t(word));
  const actions = [act("usage.limits", () => showLimits("keys", key, facts))];
  if (!key.in_file && key.status !== "revoked") actions.push(act("usage.rotate", () => rotate(key, facts)), act("usage.revoke", () => revoke(key, facts), true));
  return h(`tr${key.status === "active" ? "" : ".over"}`, null,
    h("th", { scope: "row" }, h("span.wrap", { dir: "auto" }, name), h("span.mono.muted.tiny.key-id", null, key.id)),
    h("td", { dir: "auto" }, key.tenant),
    h("td", null, h("div.tags", null, key.status === "active" ? null : h("span.tag.bad", null, t(/** @type {any} */ (`usage.status.${key.status}`))), key.admin ? h("span.tag.live", null, t("usage.admin")) : null,
      key.in_file ? h("span.tag", null, t("usage.in-file")) : null, key.old_key_until ? h("span.tag", null, t("usage.old-until", { when: moment(key.old_key_until) })) : null,
      (key.models ?? [t("usage.all-models")]).map((/** @type {string} */ model) => h("span.tag", { dir: "auto" }, model)))),
    h("td", null, key.last_used_at ? moment(key.last_used_at) : key.in_file ? "–" : t("usage.never")),
    h("td.number", null, number(sum?.requests ?? 0)), h("td.number", null, short((sum?.prompt ?? 0) + (sum?.output ?? 0))),
    facts.costs ? h("td.number", null, sum ? money(sum.costs) : "–") : null,
    h("td", null, h("div.actions", null, actions)));
}

/** @param {Facts} facts */
export function tenantsTable(facts) {
  const head = (/** @type {any} */ key) => h("th", { scope: "col" }, t(key));
  return h("table", null, h("thead", null, h("tr", null, head("usage.tenant"), head("usage.weight"), head("usage.keys"), h("th", null, h("span.unseen", null, t("usage.actions"))))),
    h("tbody", null, facts.tenants.map((tenant) => {
      const change = async () => {
        await ask({ title: t(tenant.disabled ? "usage.enable-sure" : "usage.disable-sure", { name: tenant.name }), body: h("p", null, t(tenant.disabled ? "usage.enable-lead" : "usage.disable-lead")), action: t(tenant.disabled ? "usage.enable" : "usage.disable"), danger: !tenant.disabled,
          accept: () => send("PATCH", `/tenants/${encodeURIComponent(tenant.name)}`, { disabled: !tenant.disabled }) }) && facts.again();
      };
      const act = (/** @type {any} */ word, /** @type {() => unknown} */ click) => h("button.plain", { type: "button", "aria-label": `${t(word)}: ${tenant.name}`, on: { click } }, t(word));
      return h("tr", null, h("th", { scope: "row", dir: "auto" }, tenant.name, tenant.disabled ? [" ", h("span.tag.bad", null, t("usage.disabled"))] : null, tenant.in_file ? [" ", h("span.tag", null, t("usage.in-file"))] : null),
        h("td", null, number(tenant.weight)), h("td", null, number(facts.keys.filter((key) => key.tenant === tenant.name && key.status === "active").length)),
        h("td", null, h("div.actions", null, act("usage.limits", () => showLimits("tenants", tenant, facts)), tenant.in_file ? null : act(tenant.disabled ? "usage.enable" : "usage.disable", change))));
    })));
}

/** Use of limits, and fields that change them. @param {"keys" | "tenants"} kind @param {any} one @param {Facts} facts */
async function showLimits(kind, one, facts) {
  const path = `/${kind}/${encodeURIComponent(one.id)}`;
  const use = h("div", null, h("p.small.muted", null, "…"));
  void get(`${path}/limits`).then(({ data }) => use.replaceChildren(limitUse(kind === "tenants" ? data.filter((/** @type {any} */ bound) => bound.of === "tenant") : data)), (error) => (use.textContent = error.message));
  const fixed = one.in_file || one.status === "revoked";
  const fields = fixed ? null : limitFields(one.limits);
  const changed = await ask({ title: t("usage.limits-of", { name: one.name || one.id }), body: [use, fields?.element ?? (one.in_file ? h("p.hint", null, t("usage.in-file-lead")) : null)],
    action: fixed ? t("close") : t("usage.save"), cancel: fixed ? null : t("cancel"), accept: () => fields && send("PATCH", path, { limits: fields.value() }) });
  if (changed && !fixed) facts.again();
}

/** @param {Facts} facts */
export async function newKey(facts) {
  const name = h("input", { type: "text", maxlength: 128, autocomplete: "off", required: true });
  const tenant = h("select", null, [...new Set(["default", ...facts.tenants.map((one) => one.name)])].map((one) => h("option", { value: one }, one)));
  const models = h("input", { type: "text", autocomplete: "off", spellcheck: "false" });
  const expires = h("input", { type: "date", min: new Date(Date.now() + 86_400_000).toISOString().slice(0, 10) });
  const admin = h("input", { type: "checkbox" });
  const limits = limitFields({});
  /** @type {any} */
  let made;
  const body = [field(t("usage.name"), name, t("usage.name-hint")), field(t("usage.tenant"), tenant), field(t("usage.models"), models, t("usage.models-hint")), field(t("usage.expires"), expires, t("usage.expires-hint")),
    h("label.check", null, admin, h("span", null, t("usage.make-admin"))), h("details", null, h("summary", null, t("usage.limits")), limits.element)];
  const done = await ask({ title: t("usage.new-key"), body, action: t("usage.create"), accept: async () => {
    const listed = models.value.split(",").map((/** @type {string} */ one) => one.trim()).filter(Boolean);
    const set = limits.value();
    made = await send("POST", "/keys", { name: name.value.trim(), tenant: tenant.value, admin: admin.checked, ...(listed.length ? { models: listed } : {}),
      ...(expires.value ? { expires_at: Date.parse(`${expires.value}T00:00:00Z`) / 1000 } : {}), ...(Object.keys(set).length ? { limits: set } : {}) });
  } });
  if (!done) return;
  await showSecret(made);
  await facts.again();
}

/** @param {Facts} facts */
export async function newTenant(facts) {
  const name = h("input", { type: "text", maxlength: 64, autocomplete: "off", required: true });
  const weight = h("input", { type: "number", min: 0.01, max: 1000, step: "any", value: 1 });
  const limits = limitFields({});
  const done = await ask({ title: t("usage.new-tenant"), action: t("usage.create"),
    body: [field(t("usage.name"), name), field(t("usage.weight"), weight, t("usage.weight-hint")), limits.element],
    accept: () => send("POST", "/tenants", { name: name.value.trim(), weight: Number(weight.value), limits: limits.value() }) });
  if (done) await facts.again();
}

/** @param {any} key @param {Facts} facts */
async function rotate(key, facts) {
  const grace = h("select", null, [[0, "usage.grace-none"], [3600, "usage.grace-hour"], [86_400, "usage.grace-day"], [604_800, "usage.grace-week"]].map(([seconds, word]) => h("option", { value: seconds, selected: seconds === 86_400 }, t(/** @type {any} */ (word)))));
  /** @type {any} */
  let made;
  const done = await ask({ title: t("usage.rotate-sure", { name: key.name || key.id }), body: [h("p", null, t("usage.rotate-lead")), field(t("usage.grace"), grace)], action: t("usage.rotate"),
    accept: async () => { made = await send("POST", `/keys/${encodeURIComponent(key.id)}/rotate`, { grace_s: Number(grace.value) }); } });
  if (!done) return;
  await showSecret(made);
  await facts.again();
}

/** @param {any} key @param {Facts} facts */
async function revoke(key, facts) {
  const done = await ask({ title: t("usage.revoke-sure", { name: key.name || key.id }), body: h("p", null, t("usage.revoke-lead")), action: t("usage.revoke"), danger: true,
    accept: () => send("POST", `/keys/${encodeURIComponent(key.id)}/revoke`) });
  if (done) await facts.again();
}

/** The only time that a key is seen. @param {any} made */
function showSecret(made) {
  const box = h("input.mono", { type: "text", readonly: true, value: made.key, spellcheck: "false", on: { focus: () => box.select() } });
  const said = h("span.small.muted", { role: "status" });
  const copy = h("button.button", { type: "button", on: { click: async () => {
    await navigator.clipboard.writeText(made.key);
    said.textContent = t("copied");
  } } }, t("copy"));
  return ask({ title: t("usage.secret-title"), body: [h("p", null, t("usage.secret-lead")), field(t("key.label"), box), h("div.row", null, copy, said)], action: t("usage.secret-done"), cancel: null });
}

/** @param {number} seconds */
function moment(seconds) {
  return new Intl.DateTimeFormat(language(), { dateStyle: "medium", timeStyle: "short" }).format(seconds * 1000);
}
