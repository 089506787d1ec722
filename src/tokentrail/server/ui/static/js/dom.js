/** Builds elements. Text always becomes a text node: nothing here, or anywhere in the page, parses markup. */

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @typedef {{ on?: Record<string, (event: any) => void>, [name: string]: unknown }} Properties
 */

/**
 * @param {string} spec a tag and classes: `div.panel.small`
 * @param {Properties | null} [properties] attributes; `on` holds listeners; true, false and null as for attributes
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function h(spec, properties, ...children) {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  set(element, properties ?? {});
  append(element, children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/**
 * The same for SVG.
 * @param {string} tag
 * @param {Properties} [properties]
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function svg(tag, properties, ...children) {
  const element = document.createElementNS(SVG, tag);
  set(element, properties ?? {});
  append(element, children);
  return element;
}

/** @param {Element} element @param {Properties} properties */
function set(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(/** @type {any} */ (value))) {
        element.addEventListener(event, /** @type {EventListener} */ (listener));
      }
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, String(value));
    }
  }
}

/** @param {Element | DocumentFragment} parent @param {any[]} children */
export function append(parent, children) {
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/** @param {Element} parent @param {...any} children */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/** Paths on a 24-unit grid, drawn for this page. */
const ICONS = {
  chat: ["M4 5h16v11H9l-5 4z"],
  journey: ["M4 19c5 0 3-7 8-7s3-7 8-7", "M4 19h.01", "M20 5h.01"],
  live: ["M3 12h4l3-7 4 14 3-7h4"],
  learn: ["M5 20V9", "M10 20V4", "M15 20v-8", "M20 20v-5"],
  usage: ["M4 20V4", "M4 20h16", "M8 16v-4", "M12 16V8", "M16 16v-6"],
  menu: ["M4 7h16", "M4 12h16", "M4 17h16"],
  tune: ["M4 8h9", "M17 8h3", "M15 6v4", "M4 16h3", "M11 16h9", "M9 14v4"],
  plus: ["M12 5v14", "M5 12h14"],
  send: ["M12 19V5", "M6 11l6-6 6 6"],
  stop: ["M7 7h10v10H7z"],
  close: ["M6 6l12 12", "M18 6L6 18"],
  sun: ["M12 8a4 4 0 100 8 4 4 0 000-8z", "M12 2v2", "M12 20v2", "M2 12h2", "M20 12h2", "M5 5l1.4 1.4", "M17.6 17.6L19 19", "M5 19l1.4-1.4", "M17.6 6.4L19 5"],
  moon: ["M20 14A8 8 0 0110 4a8 8 0 1010 10z"],
  language: ["M4 6h10", "M9 4v2", "M12 6c-1 4-4 7-8 9", "M6 9c1 3 4 5 7 6", "M12 20l4-9 4 9", "M13.5 17h5"],
  key: ["M8 15a4 4 0 110-6 4 4 0 010 6z", "M11 12h9v3", "M16 12v2"],
  trash: ["M5 7h14", "M9 7V4h6v3", "M7 7l1 13h8l1-13"],
  play: ["M8 5l11 7-11 7z"],
  pause: ["M8 5v14", "M16 5v14"],
};

/** @param {keyof typeof ICONS} name */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, ICONS[name].map((d) => svg("path", { d })));
}

/**
 * A button with an icon and a name that is read out.
 * @param {keyof typeof ICONS} name @param {string} label @param {(event: MouseEvent) => void} click
 */
export function iconButton(name, label, click) {
  return h("button.plain", { type: "button", "aria-label": label, title: label, on: { click } }, icon(name));
}

let ids = 0;
/** An id that no other element has. */
export function uid(prefix = "e") {
  ids += 1;
  return `${prefix}-${ids}`;
}
