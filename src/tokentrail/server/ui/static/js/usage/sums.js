/** Lines of usage put together: those that differ only in their currency are one. */

import { number } from "../format.js";

/** @typedef {{ name: string, requests: number, refused: number, prompt: number, cached: number, output: number, costs: Map<string, number> }} Sum */

/** @param {string} name @returns {Sum} */
export function empty(name) {
  return { name, requests: 0, refused: 0, prompt: 0, cached: 0, output: 0, costs: new Map() };
}

/** @param {Sum} sum @param {import("./admin.js").Line} line */
export function add(sum, line) {
  sum.requests += line.requests;
  sum.refused += line.refused;
  sum.prompt += line.prompt_tokens;
  sum.cached += line.cached_tokens;
  sum.output += line.output_tokens;
  if (line.currency) sum.costs.set(line.currency, (sum.costs.get(line.currency) ?? 0) + Number(line.cost));
}

/** @param {import("./admin.js").Line[]} lines @param {string} by @returns {Map<string, Sum>} */
export function sums(lines, by) {
  const made = new Map();
  for (const line of lines) {
    const name = String(line[by] ?? "");
    if (!made.has(name)) made.set(name, empty(name));
    add(made.get(name), line);
  }
  return made;
}

/** Money as it is written, of all currencies that occur. @param {Map<string, number>} costs */
export function money(costs) {
  return [...costs].map(([currency, amount]) => inCurrency(amount, currency)).join(" + ") || "–";
}

/** @param {number} amount @param {string} currency */
export function inCurrency(amount, currency) {
  const digits = amount !== 0 && Math.abs(amount) < 1 ? 4 : 2;
  try {
    return number(amount, { style: "currency", currency, maximumFractionDigits: digits, minimumFractionDigits: Math.min(2, digits) });
  } catch {
    return `${number(amount, { maximumFractionDigits: digits })} ${currency}`; // a name of their own, such as credits
  }
}

/** The last days up to today, in UTC, as the ledger counts them. @param {number} count @returns {string[]} */
export function lastDays(count) {
  const today = Date.now();
  return Array.from({ length: count }, (_, index) => new Date(today - (count - 1 - index) * 86_400_000).toISOString().slice(0, 10));
}
