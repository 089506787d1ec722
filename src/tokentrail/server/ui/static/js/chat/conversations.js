/** The conversations of this browser, and the answers that run: what the chat view shows. Outlives the view. */

import { allKept, forgetConversation, keepConversation } from "../kept.js";
import { t } from "../i18n.js";
import { AnswerRun } from "./answer-run.js";
import { PARAMETERS } from "./parameters.js";

/**
 * @typedef {{ role: "user" | "assistant", content: string, reasoning?: string, status?: AnswerStatus, error?: string,
 *   notice?: string, journey?: string, model?: string, seed?: number, fingerprint?: string, finish?: string | null,
 *   firstToken?: number, seconds?: number, tokens?: number, promptTokens?: number, cachedTokens?: number }} Message
 * @typedef {"streaming" | "waiting" | "done" | "stopped" | "failed"} AnswerStatus
 * @typedef {{ id: string, title: string, updated: number, model: string, system: string,
 *   parameters: Record<string, any>, messages: Message[] }} Conversation
 */

const SAVE_EVERY = 800;

export class Conversations extends EventTarget {
  constructor() {
    super();
    /** @type {Map<string, Conversation>} */
    this.byId = new Map();
    /** By conversation. @type {Map<string, AnswerRun>} */
    this.runs = new Map();
    /** @type {Map<string, ReturnType<typeof setTimeout>>} */
    this.saving = new Map();
    this.draft = newConversation();
    addEventListener("pagehide", () => this.saveAll());
  }

  /** Read what is kept; answers that were running when the page was left go on. */
  async load() {
    for (const conversation of await allKept()) this.byId.set(conversation.id, conversation);
    for (const conversation of this.byId.values()) {
      const last = conversation.messages.at(-1);
      if (last?.status === "streaming" || last?.status === "waiting") this.#run(conversation, last);
    }
  }

  /** Newest first. */
  list() {
    return [...this.byId.values()].sort((a, b) => b.updated - a.updated);
  }

  /** The one with this id; else a new one, which is kept once something is asked. @param {string} id */
  get(id) {
    return this.byId.get(id) ?? this.draft;
  }

  /** A new one with the settings of `like`. @param {Conversation} [like] */
  fresh(like) {
    this.draft = newConversation(like);
    return this.draft;
  }

  /** Ask, after the messages there are. @param {Conversation} conversation @param {string} text */
  ask(conversation, text) {
    if (this.runs.has(conversation.id)) return;
    if (!this.byId.has(conversation.id)) {
      this.byId.set(conversation.id, conversation);
      if (conversation === this.draft) this.draft = newConversation(conversation);
    }
    if (!conversation.title) conversation.title = [...text.slice(0, 1000).replace(/\s+/g, " ").trim()].slice(0, 120).join("");
    conversation.messages.push({ role: "user", content: text });
    this.#answer(conversation);
  }

  /** Ask the question at `index` again, as `text`; what came after it goes. @param {Conversation} conversation @param {number} index @param {string} text */
  resend(conversation, index, text) {
    if (this.runs.has(conversation.id)) return;
    conversation.messages.length = index;
    this.ask(conversation, text);
  }

  /** @param {Conversation} conversation */
  stop(conversation) {
    this.runs.get(conversation.id)?.stop();
  }

  /** @param {string} id */
  async remove(id) {
    this.runs.get(id)?.stop();
    this.byId.delete(id);
    clearTimeout(this.saving.get(id));
    await forgetConversation(id);
    this.#changed();
  }

  /** Keep it soon. @param {Conversation} conversation */
  save(conversation) {
    if (this.saving.has(conversation.id) || !this.byId.has(conversation.id)) return;
    this.saving.set(conversation.id, setTimeout(() => this.#saveNow(conversation), SAVE_EVERY));
  }

  saveAll() {
    for (const id of [...this.saving.keys()]) {
      clearTimeout(this.saving.get(id));
      const conversation = this.byId.get(id);
      if (conversation) this.#saveNow(conversation);
    }
  }

  /** @param {Conversation} conversation */
  #saveNow(conversation) {
    this.saving.delete(conversation.id);
    if (this.byId.has(conversation.id)) void keepConversation(conversation);
  }

  /** @param {Conversation} conversation */
  #answer(conversation) {
    /** @type {Message} */
    const message = { role: "assistant", content: "", status: "streaming", model: conversation.model };
    conversation.messages.push(message);
    conversation.updated = Date.now();
    this.#saveNow(conversation);
    this.#run(conversation, message);
    this.#changed();
  }

  /** @param {Conversation} conversation @param {Message} message */
  #run(conversation, message) {
    const body = requestOf(conversation, message);
    const run = new AnswerRun(body, message, () => this.save(conversation));
    // At once, so that a page that is left now can go on with the same seed.
    run.addEventListener("begin", () => this.#saveNow(conversation));
    this.runs.set(conversation.id, run);
    void run.go().finally(() => {
      this.runs.delete(conversation.id);
      this.#saveNow(conversation);
      this.#changed();
    });
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

/** @param {Conversation} [like] @returns {Conversation} */
function newConversation(like) {
  return {
    id: crypto.randomUUID?.() ?? `c${Date.now().toString(36)}${Math.random().toString(36).slice(2)}`,
    title: "",
    updated: Date.now(),
    model: like?.model ?? "",
    system: like?.system ?? "",
    parameters: { ...like?.parameters },
    messages: [],
  };
}

/** What is asked of the server. @param {Conversation} conversation @param {Message} answer */
function requestOf(conversation, answer) {
  const messages = [];
  if (conversation.system.trim()) messages.push({ role: "system", content: conversation.system });
  for (const message of conversation.messages) {
    if (message === answer) break;
    messages.push({ role: message.role, content: message.content });
  }
  /** @type {Record<string, any>} */
  const body = { model: conversation.model, messages, stream: true, stream_options: { include_usage: true } };
  for (const { name } of PARAMETERS) {
    const value = conversation.parameters[name];
    if (value !== undefined && value !== null && value !== "") body[name] = value;
  }
  const stop = String(conversation.parameters.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (conversation.parameters.alternatives) {
    body.logprobs = true;
    body.top_logprobs = 5;
  }
  if (answer.seed !== undefined) body.seed = answer.seed;
  return body;
}

/** @param {Conversation} conversation */
export function titleOf(conversation) {
  return conversation.title || t("chat.new");
}
