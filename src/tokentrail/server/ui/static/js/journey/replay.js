/** Plays a journey again: as fast as it was, or slower. */

import { fill, h, icon, uid } from "../dom.js";
import { duration } from "../format.js";
import { t } from "../i18n.js";

/** @param {number} seconds the journey's length @param {(at: number | null) => void} show null: all of it */
export function replay(seconds, show) {
  let at = 0;
  let last = 0;
  let frame = 0;
  const id = uid("speed");
  const speed = h("select", { id, "aria-label": t("journey.speed") }, [1, 0.5, 0.25, 0.1, 0.02].map((one) => h("option", { value: one }, one === 1 ? t("journey.real-speed") : `× ${one}`)));
  const place = h("input", { type: "range", min: 0, max: seconds, step: "any", value: seconds, "aria-label": t("journey.place"), on: { input: () => { stop(); at = Number(place.value); draw(); } } });
  const time = h("output.small.muted", null, duration(seconds));
  const button = h("button.button", { type: "button", on: { click: () => (frame ? stop() : start()) } });
  function label() {
    fill(button, icon(frame ? "pause" : "play"), t(frame ? "journey.pause" : "journey.replay"));
  }
  function draw() {
    place.value = String(at);
    time.textContent = duration(at);
    show(at >= seconds ? null : at);
  }
  function start() {
    if (at >= seconds || Number(place.value) >= seconds) at = 0;
    last = performance.now();
    frame = requestAnimationFrame(tick);
    label();
  }
  function stop() {
    cancelAnimationFrame(frame);
    frame = 0;
    label();
  }
  function tick(/** @type {number} */ now) {
    at = Math.min(seconds, at + (Math.max(0, now - last) / 1000) * Number(speed.value));
    last = now;
    draw();
    if (at >= seconds) stop();
    else frame = requestAnimationFrame(tick);
  }
  label();
  return { element: h("div.replay", null, button, speed, place, time), stop };
}
