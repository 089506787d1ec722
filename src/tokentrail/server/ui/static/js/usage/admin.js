/** The admin API, as this view asks it. */

import { json } from "../api.js";

const ADMIN = "/admin/v1";
/** More are not shown. */
const MOST = 1000;

/** @param {string} path @param {AbortSignal} [signal] */
export function get(path, signal) {
  return json(ADMIN + path, { signal });
}

/** @param {"POST" | "PATCH"} method @param {string} path @param {unknown} [body] */
export function send(method, path, body) {
  return json(ADMIN + path, { method, body });
}

/** All of a list, page by page. @param {string} path @param {AbortSignal} signal @returns {Promise<any[]>} */
export async function all(path, signal) {
  const found = [];
  let after = "";
  while (found.length < MOST) {
    const sign = path.includes("?") ? "&" : "?";
    const page = await get(`${path}${sign}limit=100${after && `&after=${encodeURIComponent(after)}`}`, signal);
    found.push(...page.data);
    if (!page.has_more) break;
    after = page.data.at(-1).id;
  }
  return found;
}

/**
 * Sums of usage.
 * @typedef {{ requests: number, refused: number, prompt_tokens: number, cached_tokens: number, output_tokens: number, cost: string, currency: string, [name: string]: any }} Line
 * @param {string} by @param {string} from @param {AbortSignal} signal @returns {Promise<Line[]>}
 */
export async function usage(by, from, signal) {
  return (await get(`/usage?by=${by}&from=${from}`, signal)).data;
}
