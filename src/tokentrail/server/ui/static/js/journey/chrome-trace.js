/** A journey in Chrome's trace event format, for chrome://tracing and Perfetto. Times are microseconds from its start. */

import { rows } from "./model.js";

/** @param {any} journey */
export function chromeTrace(journey) {
  const zero = journey.received_at;
  const micros = (/** @type {number} */ seconds) => Math.round(seconds * 1e9) / 1e3;
  /** @type {any[]} */
  const events = [{ ph: "M", pid: 1, tid: 0, name: "process_name", args: { name: journey.model } }];
  const stages = new Set(["received", "filter_in", "judged", "looked_up", "attempt", "template", "tokenize", "queue", "finished"]);
  for (const sequence of journey.sequences) {
    const tid = sequence.index + 1;
    events.push({ ph: "M", pid: 1, tid, name: "thread_name", args: { name: `sequence ${sequence.index}` } });
    for (const row of rows(journey, sequence)) {
      if (!stages.has(row.name) || (sequence.index && row.name !== "queue")) continue;
      events.push(row.seconds > 0
        ? { ph: "X", pid: 1, tid: row.name === "queue" ? tid : 0, name: row.name, cat: "stage", ts: micros(row.start), dur: micros(row.seconds) }
        : { ph: "i", s: "t", pid: 1, tid: 0, name: row.name, cat: "stage", ts: micros(row.start) });
    }
    for (const step of sequence.steps) {
      const { start_at: at, seconds, kind, ...args } = step;
      events.push({ ph: "X", pid: 1, tid, name: kind, cat: "step", ts: micros(at - zero), dur: micros(seconds), args });
      events.push({ ph: "C", pid: 1, tid, name: `KV blocks of sequence ${sequence.index}`, ts: micros(at - zero + seconds), args: { held: step.blocks } });
    }
    for (const [name, times] of [["preempted", sequence.preempted_at], ["resumed", sequence.resumed_at]]) {
      for (const at of times) events.push({ ph: "i", s: "t", pid: 1, tid, name, cat: "engine", ts: micros(at - zero) });
    }
  }
  return { displayTimeUnit: "ms", traceEvents: events, otherData: { id: journey.id, seed: journey.seed, system_fingerprint: journey.system_fingerprint } };
}
