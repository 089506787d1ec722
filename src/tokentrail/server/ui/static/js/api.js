/** The server's public API. The key lives in this tab alone. */

const KEY = "tokentrail.key";
/** Where session storage is refused. */
let inMemory = "";

/** @returns {string} empty: none */
export function apiKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return inMemory;
  }
}

/** @param {string} key */
export function setApiKey(key) {
  inMemory = key;
  try {
    if (key) sessionStorage.setItem(KEY, key);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Kept in memory.
  }
}

/** What the server says instead of an answer, or that it does not say anything (`status` 0). */
export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string} code */
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** It may be there again soon: a server that starts, stops or is not reached. */
  get passing() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.code === "shutting_down" || this.code === "engine_dead";
  }
}

/** @type {((wrong: boolean) => Promise<boolean>) | null} */
let askForKey = null;
/** @param {(wrong: boolean) => Promise<boolean>} ask resolves to whether there is a new key to try */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/**
 * A request; a refused key is asked for, and the request made again.
 * @param {string} path
 * @param {{ method?: string, body?: unknown, signal?: AbortSignal, headers?: Record<string, string> }} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, options = {}) {
  for (;;) {
    const key = apiKey();
    /** @type {Record<string, string>} */
    const headers = { accept: "application/json", ...options.headers };
    if (key) headers.authorization = `Bearer ${key}`;
    if (options.body !== undefined) headers["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: options.method ?? (options.body === undefined ? "GET" : "POST"),
        headers,
        body: options.body === undefined ? undefined : JSON.stringify(options.body),
        signal: options.signal,
        cache: "no-store",
        credentials: "omit",
        referrerPolicy: "no-referrer",
      });
    } catch (error) {
      if (/** @type {any} */ (error).name === "AbortError") throw error;
      throw new ApiError(0, String(/** @type {any} */ (error).message ?? error), "unreachable");
    }
    if (response.ok) return response;
    if (response.status === 401 && askForKey !== null && (apiKey() !== key || (await askForKey(key !== "")))) continue;
    throw await errorOf(response);
  }
}

/** @param {Response} response */
async function errorOf(response) {
  let message = `${response.status} ${response.statusText}`;
  let code = "";
  try {
    const { error } = await response.json();
    message = typeof error === "string" ? error : (error.message ?? message);
    code = error.code ?? "";
  } catch {
    // No JSON: a proxy, perhaps.
  }
  return new ApiError(response.status, message, code);
}

/** @param {string} path @param {Parameters<typeof request>[1]} [options] @returns {Promise<any>} */
export async function json(path, options) {
  return (await request(path, options)).json();
}

/**
 * The data of server-sent events, parsed. An error told in the stream is thrown; so is a stream that ends early.
 * @param {string} path @param {Parameters<typeof request>[1] & { endless?: boolean }} options
 * @returns {AsyncGenerator<any>}
 */
export async function* events(path, options = {}) {
  const response = await request(path, { ...options, headers: { accept: "text/event-stream" } });
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (/** @type {any} */ (error).name === "AbortError") throw error;
        throw new ApiError(0, String(/** @type {any} */ (error).message ?? error), "unreachable");
      }
      rest += decoder.decode(part.value, { stream: !part.done });
      const lines = rest.split("\n");
      rest = /** @type {string} */ (lines.pop());
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.status ?? 500, event.error.message ?? String(event.error), event.error.code ?? "");
        yield event;
      }
      if (part.done) throw new ApiError(0, "The stream ended early.", "cut");
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

/** Wait until the server takes requests, at growing intervals. @param {AbortSignal} signal */
export async function serverBack(signal) {
  for (let pause = 150; ; pause = Math.min(pause * 1.6, 3000)) {
    try {
      const response = await fetch("/health", { signal, cache: "no-store", credentials: "omit" });
      if (response.ok) return;
    } catch (error) {
      if (/** @type {any} */ (error).name === "AbortError") throw error;
    }
    await sleep(pause, signal);
  }
}

/** @param {number} milliseconds @param {AbortSignal} signal */
function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("aborted", "AbortError"));
    }, { once: true });
  });
}
