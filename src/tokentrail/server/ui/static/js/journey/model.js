/** What a journey's JSON says, put together for showing: rows of the waterfall, tokens with their steps and company. */

import { t } from "../i18n.js";

/** @typedef {{ key: string, name: string, what: string, start: number, seconds: number, kind: string, spread?: boolean }} Row */

/** Prompt chunks that get rows of their own. */
const MOST_CHUNKS = 12;

/** What parts of the gateway tell. @type {Record<string, { name: string, what: (facts: Record<string, any>) => string }>} */
const GATEWAY = {
  filtered: { name: "filter_in", what: found },
  "filtered out": { name: "filter_out", what: (facts) => [t("journey.in-all"), found(facts)].filter(Boolean).join(" · ") },
  judged: { name: "judged", what: found },
  "looked up": { name: "looked_up", what: ({ hit }) => t(hit ? "journey.kept" : "journey.not-kept") },
  attempt: { name: "attempt", what: ({ target, error }) => (error ? `${target}: ${error}` : String(target)) },
};

/** @param {Record<string, any>} facts */
function found({ rules }) {
  return rules ? t("journey.rules", { rules }) : "";
}

/** Of what no engine here computed: its stages are known, its steps are not. */
export const NO_SEQUENCE = { index: 0, steps: [], tokens: [], preempted_at: [], resumed_at: [] };

/** The whole time axis: seconds from the start. @param {any} journey */
export function span(journey) {
  const start = journey.received_at;
  const ends = journey.events.map((/** @type {any} */ event) => event.at);
  for (const sequence of journey.sequences) {
    const last = sequence.steps.at(-1);
    if (last) ends.push(last.start_at + last.seconds);
  }
  return { start, seconds: Math.max(...ends, start + 1e-6) - start };
}

const OUTCOMES = ["stop", "length", "abort", "rejected", "timeout", "error"];

/** How it ended, in words. @param {string | null} outcome */
export function ended(outcome) {
  return OUTCOMES.includes(outcome ?? "") ? t(/** @type {any} */ (`journey.ended.${outcome}`)) : (outcome ?? "");
}

/** Rows of the waterfall for one sequence. @param {any} journey @param {any} sequence @returns {Row[]} */
export function rows(journey, sequence) {
  const { stages } = journey;
  const start = journey.received_at;
  const at = (/** @type {string} */ name) => journey.events.find((/** @type {any} */ event) => event.event === name && (event.sequence ?? sequence.index) === sequence.index)?.at;
  const ready = at("templated") ?? start;
  /** @type {Row[]} */
  const made = [];
  const add = (/** @type {string} */ name, /** @type {string} */ what, /** @type {number} */ from, /** @type {number} */ seconds, kind = name, spread = false) =>
    made.push({ key: `${name}-${made.length}`, name, what, start: Math.max(0, from - start), seconds, kind, spread });
  add("received", journey.endpoint, start, 0);
  const told = (/** @type {boolean} */ beside) => {
    for (const one of journey.gateway) {
      const row = GATEWAY[one.name];
      if (row && (one.busy_seconds !== null) === beside) add(row.name, row.what(one.facts), one.start_at, one.busy_seconds ?? one.seconds, row.name, beside);
    }
  };
  told(false);
  if (stages.template !== null) add("template", "", ready - (stages.tokenize ?? 0) - stages.template, stages.template);
  if (stages.tokenize !== null) add("tokenize", t("tokens.count", { count: journey.prompt_tokens }), ready - stages.tokenize, stages.tokenize);
  made.sort((one, other) => one.start - other.start);
  const queued = at("queued");
  const scheduled = at("scheduled");
  if (queued !== undefined && scheduled !== undefined) add("queue", "", queued, Math.max(0, scheduled - queued));
  addSteps(add, sequence);
  for (const when of sequence.preempted_at) add("preempted", "", when, 0);
  for (const when of sequence.resumed_at) add("resumed", "", when, 0);
  const first = journey.first_token_at ?? start;
  if (!sequence.steps.length && journey.first_token_at !== null && !queued) add("elsewhere", t("tokens.count", { count: journey.completion_tokens }), ready, (journey.finished_at ?? first) - ready);
  const end = journey.finished_at ?? first;
  if (stages.detokenize) add("detokenize", t("journey.in-all"), first, stages.detokenize, "detokenize", true);
  told(true);
  if (stages.send) add("send", t("journey.in-all"), first, stages.send, "send", true);
  if (journey.finished_at !== null) add("finished", ended(journey.outcome), end, 0);
  return made;
}

/** Stretches of steps of one kind. @param {Function} add @param {any} sequence */
function addSteps(add, sequence) {
  /** @type {any[][]} */
  const stretches = [];
  for (const step of sequence.steps) {
    const open = stretches.at(-1);
    if (open && open[0].kind === step.kind && step.kind !== "prefill" && step.engine === open[0].engine && step.replica === open[0].replica) open.push(step);
    else stretches.push([step]);
  }
  const chunks = stretches.filter(([step]) => step.kind === "prefill").length;
  /** @type {any[]} */
  let joined = [];
  const put = (/** @type {any[]} */ steps) => {
    const [first] = steps;
    const last = steps.at(-1);
    const tokens = steps.reduce((sum, step) => sum + step.tokens, 0);
    const what = first.kind === "prefill"
      ? t(first.cached_tokens ? "journey.chunk" : "journey.decoding", { tokens, cached: first.cached_tokens, steps: steps.length })
      : first.kind === "decode" ? t("journey.decoding", { tokens, steps: steps.length }) : t("journey.recomputing", { tokens, steps: steps.length });
    add(first.kind, what, first.start_at, last.start_at + last.seconds - first.start_at);
  };
  for (const steps of stretches) {
    if (steps[0].kind === "prefill" && chunks > MOST_CHUNKS) {
      joined.push(...steps);
      continue;
    }
    if (joined.length) put(joined);
    joined = [];
    put(steps);
  }
  if (joined.length) put(joined);
}

/** Index of the step that brought each token, by token. @param {any} sequence */
export function stepsOfTokens(sequence) {
  const found = [];
  let at = 0;
  for (const token of sequence.tokens) {
    while (at < sequence.steps.length && (sequence.steps[at].step !== token.step || Math.abs(sequence.steps[at].start_at + sequence.steps[at].seconds - token.at) > 1e-3)) at += 1;
    if (at === sequence.steps.length) {
      // Not found in order: look from the start, so that one odd token does not hide the others'.
      at = Math.max(0, sequence.steps.findIndex((/** @type {any} */ step) => step.step === token.step));
    }
    found.push(at);
  }
  return found;
}

/** Who shared a step: journeys of the same key, and how many others. @param {any} sequence @param {number} index */
export function company(sequence, index) {
  const own = (sequence.company ?? []).filter((/** @type {any} */ one) => one.steps.some((/** @type {number[]} */ [first, last]) => first <= index && index <= last));
  const step = sequence.steps[index];
  return { own, others: Math.max(0, (step?.batch_sequences ?? 1) - 1 - own.length) };
}

/** @param {any} journey @param {any} [sequence] tokens a second after the first @returns {number | null} */
export function rate(journey) {
  const tokens = journey.completion_tokens - journey.num_sequences;
  return journey.stages.decode && tokens > 0 ? tokens / journey.stages.decode : null;
}
