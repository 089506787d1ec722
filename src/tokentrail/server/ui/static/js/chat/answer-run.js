/**
 * One answer while it comes. When the connection breaks or the server is restarted, the same question is asked again
 * with the same seed: the server promises the same bytes, so what is shown already is compared, and the answer goes on
 * behind it.
 */

import { ApiError, events, serverBack } from "../api.js";
import { t } from "../i18n.js";

export class AnswerRun extends EventTarget {
  /**
   * @param {Record<string, any>} body the request
   * @param {import("./conversations.js").Message} message what is filled in
   * @param {() => void} changed called for every change
   */
  constructor(body, message, changed) {
    super();
    this.body = body;
    this.message = message;
    this.changed = changed;
    this.aborter = new AbortController();
  }

  stop() {
    this.aborter.abort();
  }

  /** Until the answer is there, failed or stopped; never throws. */
  async go() {
    const { message } = this;
    for (;;) {
      try {
        this.#status("streaming");
        await this.#ask();
        this.#status("done");
        return;
      } catch (error) {
        if (this.aborter.signal.aborted) {
          this.#status("stopped");
          return;
        }
        if (!(error instanceof ApiError) || !error.passing) {
          message.error = error instanceof Error ? error.message : String(error);
          this.#status("failed");
          return;
        }
        this.#status("waiting");
        try {
          await serverBack(this.aborter.signal);
        } catch {
          this.#status("stopped");
          return;
        }
      }
    }
  }

  async #ask() {
    const { message, body } = this;
    const began = performance.now();
    const replays = { content: new Replay(message.content), reasoning: new Replay(message.reasoning ?? "") };
    const resumed = message.content !== "" || Boolean(message.reasoning);
    let first = 0;
    let ended = false;
    for await (const event of events("/v1/chat/completions", { body, signal: this.aborter.signal })) {
      if (message.journey !== event.id) this.#begin(event, replays);
      if (event.usage) this.#count(event.usage, resumed ? 0 : first - began, performance.now() - first);
      const choice = event.choices?.[0];
      if (!choice) continue;
      const { content, reasoning_content: reasoning } = choice.delta ?? {};
      if (content || reasoning) {
        first ||= performance.now();
        this.#take("reasoning", reasoning, replays.reasoning);
        this.#take("content", content, replays.content);
      }
      if (choice.finish_reason) {
        message.finish = choice.finish_reason;
        ended = true;
      }
    }
    if (!ended) throw new ApiError(0, "The answer was cut off.", "cut");
  }

  /** @param {any} event the first of a stream @param {{ content: Replay, reasoning: Replay }} replays */
  #begin(event, replays) {
    const { message } = this;
    const changed = message.fingerprint !== undefined && message.fingerprint !== event.system_fingerprint;
    if (changed && (message.content || message.reasoning)) {
      // Another model or build: its bytes are not promised to be those.
      message.notice = t("chat.restarted-other");
      message.content = message.reasoning = "";
      replays.content.forget();
      replays.reasoning.forget();
      this.dispatchEvent(new Event("reset"));
    }
    Object.assign(message, { journey: event.id, seed: event.seed, fingerprint: event.system_fingerprint, model: event.model });
    this.body.seed = event.seed;
    this.dispatchEvent(new Event("begin"));
  }

  /** @param {"content" | "reasoning"} name @param {string | undefined} text @param {Replay} replay */
  #take(name, text, replay) {
    if (!text) return;
    const { message } = this;
    const before = message[name] ?? "";
    const fresh = replay.take(text);
    if (fresh === null) {
      // The server broke its promise: show what it says now.
      message[name] = replay.said;
      message.notice = t("chat.differs");
      replay.forget();
      this.dispatchEvent(new Event("reset"));
    } else if (fresh) {
      message[name] = before + fresh;
      this.dispatchEvent(new CustomEvent(name, { detail: fresh }));
    } else {
      return;
    }
    this.changed();
  }

  /** @param {any} usage @param {number} untilFirst @param {number} since milliseconds */
  #count(usage, untilFirst, since) {
    const { message } = this;
    message.tokens = usage.completion_tokens;
    message.promptTokens = usage.prompt_tokens;
    message.cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? 0;
    message.seconds = since / 1000;
    if (untilFirst > 0) message.firstToken = untilFirst / 1000;
  }

  /** @param {import("./conversations.js").AnswerStatus} status */
  #status(status) {
    if (this.message.status === status && status === "streaming") return;
    this.message.status = status;
    this.changed();
    this.dispatchEvent(new Event("status"));
  }
}

/** Compares what a new stream says with what is shown already. */
class Replay {
  /** @param {string} shown */
  constructor(shown) {
    this.shown = shown;
    this.at = 0;
  }

  forget() {
    this.shown = "";
    this.at = 0;
  }

  /** Everything heard so far, once it differs. */
  said = "";

  /** @param {string} text @returns {string | null} what is new of it; null: it is not what is shown */
  take(text) {
    if (this.at === this.shown.length) return text;
    const known = this.shown.slice(this.at, this.at + text.length);
    if (!text.startsWith(known)) {
      this.said = this.shown.slice(0, this.at) + text;
      return null;
    }
    this.at += known.length;
    return text.slice(known.length);
  }
}
