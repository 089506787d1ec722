/**
 * Markdown while it arrives: what is complete stays as it is, only the open end is made anew, and code is only added to.
 * Makes DOM nodes from text; HTML in an answer is text like any other.
 */

import { append, h } from "./dom.js";
import { inline } from "./markdown-inline.js";
import { t } from "./i18n.js";

/** Characters after which an open paragraph or list is taken as complete, so that no frame gets long. */
const MOST_OPEN = 4000;
const FENCE = /^ {0,12}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

export class MarkdownStream {
  /** @param {HTMLElement} root gets the nodes */
  constructor(root) {
    this.root = root;
    /** Source of what is not complete. */
    this.open = "";
    /** @type {Node[]} what shows it */
    this.shown = [];
    /** @type {{ text: Text, mark: string, partial: string, partialNode: Text } | null} the code block that is open */
    this.code = null;
    this.joined = false;
  }

  /** @param {string} text */
  append(text) {
    let rest = text;
    while (rest) rest = this.code === null ? this.#prose(rest) : this.#codeLines(rest);
    if (this.code === null) this.#draw();
  }

  /** Nothing more comes. */
  end() {
    if (this.code !== null) this.#closeCode();
    this.#commit(this.open);
  }

  /** @param {string} text @returns {string} what stands behind the beginning of a code block */
  #prose(text) {
    const from = this.open.lastIndexOf("\n") + 1;
    this.open += text;
    for (let start = from; ; ) {
      const end = this.open.indexOf("\n", start);
      if (end < 0) break;
      const line = this.open.slice(start, end);
      const fence = FENCE.exec(line);
      if (fence) {
        const behind = this.open.slice(end + 1);
        this.#commit(this.open.slice(0, start));
        this.open = "";
        this.#openCode(fence[1], fence[2]);
        return behind;
      }
      start = end + 1;
      const blank = line.trim() === "" && !ITEM.test(this.open.trimStart().split("\n", 1)[0]);
      if (blank || start > MOST_OPEN) {
        this.#commit(this.open.slice(0, start), !blank);
        const behind = this.open;
        this.open = "";
        return behind;
      }
    }
    if (this.open.length > 2 * MOST_OPEN) {
      // One line without end: cut it at a space if there is one.
      const space = this.open.lastIndexOf(" ", MOST_OPEN);
      const cut = space > MOST_OPEN / 2 ? space + 1 : safeCut(this.open, MOST_OPEN);
      const behind = this.open.slice(cut);
      this.#commit(this.open.slice(0, cut), true);
      this.open = "";
      return behind;
    }
    return "";
  }

  /** @param {string} source @param {boolean} [goesOn] the last paragraph has more to come */
  #commit(source, goesOn = false) {
    this.#undraw();
    this.open = this.open.slice(source.length);
    if (!source.trim()) return;
    const nodes = blocks(source);
    // What goes on with a paragraph that was cut is added to it.
    const last = this.root.lastElementChild;
    if (this.joined && last?.tagName === "P" && nodes[0] instanceof HTMLParagraphElement) {
      last.append(...nodes[0].childNodes);
      nodes.shift();
    }
    this.root.append(...nodes);
    this.joined = goesOn;
  }

  #draw() {
    this.#undraw();
    if (!this.open.trim()) return;
    this.shown = blocks(this.open);
    this.root.append(...this.shown);
  }

  #undraw() {
    for (const node of this.shown) this.root.removeChild(node);
    this.shown = [];
  }

  /** @param {string} mark @param {string} name */
  #openCode(mark, name) {
    const { figure, text, partialNode } = codeBlock(name);
    this.root.append(figure);
    this.code = { text, mark, partial: "", partialNode };
    this.joined = false;
  }

  /** @param {string} text @returns {string} what stands behind the end of the block */
  #codeLines(text) {
    const code = /** @type {NonNullable<MarkdownStream["code"]>} */ (this.code);
    code.partial += text;
    const end = code.partial.lastIndexOf("\n") + 1;
    if (end) {
      let start = 0;
      while (start < end) {
        const stop = code.partial.indexOf("\n", start);
        const line = code.partial.slice(start, stop).trim();
        if (line.startsWith(code.mark) && line.replaceAll(code.mark[0], "") === "") {
          code.text.appendData(code.partial.slice(0, start));
          const behind = code.partial.slice(stop + 1);
          code.partial = "";
          this.#closeCode();
          return behind;
        }
        start = stop + 1;
      }
      code.text.appendData(code.partial.slice(0, end));
      code.partial = code.partial.slice(end);
    }
    code.partialNode.data = code.partial;
    return "";
  }

  #closeCode() {
    const code = /** @type {NonNullable<MarkdownStream["code"]>} */ (this.code);
    if (code.partial.trim() !== code.mark) code.text.appendData(code.partial);
    code.partialNode.remove();
    this.code = null;
  }
}

/** @param {HTMLElement} root @param {string} text */
export function renderMarkdown(root, text) {
  const stream = new MarkdownStream(root);
  stream.append(text);
  stream.end();
}

/** Not between the halves of a character. @param {string} text @param {number} at */
function safeCut(text, at) {
  const code = text.charCodeAt(at - 1);
  return code >= 0xd800 && code < 0xdc00 ? at - 1 : at;
}

/** @param {string} name */
function codeBlock(name) {
  const text = document.createTextNode("");
  const partialNode = document.createTextNode("");
  const said = h("span.unseen", { role: "status" });
  const copy = h("button.plain", {
    type: "button",
    on: {
      click: async () => {
        await navigator.clipboard.writeText(text.data + partialNode.data);
        said.textContent = copy.textContent = t("copied");
        setTimeout(() => (copy.textContent = t("copy")), 1500);
      },
    },
  }, t("copy"));
  const figure = h("figure.code", null, h("figcaption", null, h("span", null, name || t("code")), copy, said),
    h("pre", { tabindex: "0", dir: "ltr" }, h("code", null, text, partialNode)));
  return { figure, text, partialNode };
}

/** Blocks of a text without code blocks. @param {string} source @returns {HTMLElement[]} */
function blocks(source) {
  const lines = source.split("\n");
  const made = [];
  for (let at = 0; at < lines.length; ) {
    const line = lines[at];
    const heading = HEADING.exec(line);
    if (line.trim() === "") {
      at += 1;
    } else if (heading) {
      made.push(h(`h${Math.min(heading[1].length + 2, 6)}`, { dir: "auto" }, inline(heading[2])));
      at += 1;
    } else if (RULE.test(line)) {
      made.push(h("hr"));
      at += 1;
    } else if (/^ {0,3}>/.test(line)) {
      const quoted = [];
      while (at < lines.length && lines[at].trim() !== "") quoted.push(lines[at++].replace(/^ {0,3}> ?/, ""));
      made.push(h("blockquote", null, nested(quoted)));
    } else if (ITEM.test(line)) {
      const end = endOfList(lines, at);
      made.push(list(lines.slice(at, end)));
      at = end;
    } else if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && TABLE_RULE.test(lines[at + 1])) {
      let end = at + 2;
      while (end < lines.length && lines[end].includes("|")) end += 1;
      made.push(table(lines[at], lines.slice(at + 2, end)));
      at = end;
    } else {
      const start = at;
      at += 1;
      while (at < lines.length && lines[at].trim() !== "" && !interrupts(lines[at])) at += 1;
      made.push(h("p", { dir: "auto" }, inline(lines.slice(start, at).join("\n"))));
    }
  }
  return made;
}

let depth = 0;
/** Quotes in quotes, as deep as anybody writes them. @param {string[]} lines */
function nested(lines) {
  if (depth > 8) return [h("p", { dir: "auto" }, lines.join("\n"))];
  depth += 1;
  try {
    return blocks(lines.join("\n"));
  } finally {
    depth -= 1;
  }
}

/** @param {string} line */
function interrupts(line) {
  return HEADING.test(line) || RULE.test(line) || ITEM.test(line) || /^ {0,3}>/.test(line);
}

/** @param {string[]} lines @param {number} at */
function endOfList(lines, at) {
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (line.trim() === "") {
      const next = lines[end + 1];
      if (next === undefined || !(ITEM.test(next) || /^\s{2,}\S/.test(next))) break;
    } else if (!ITEM.test(line) && (HEADING.test(line) || RULE.test(line)) && !/^\s{2,}/.test(line)) {
      break;
    }
  }
  return end;
}

/** @param {string[]} lines @returns {HTMLElement} */
function list(lines) {
  /** @type {{ indent: number, element: HTMLElement, item: HTMLElement }[]} */
  const open = [];
  /** @type {HTMLElement | null} */
  let outermost = null;
  /** @type {string[]} */
  let text = [];
  const write = () => {
    if (open.length && text.length) append(open[open.length - 1].item, [inline(text.join("\n"))]);
    text = [];
  };
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (!item) {
      if (line.trim()) text.push(line.trim());
      continue;
    }
    write();
    const indent = item[1].replaceAll("\t", "    ").length;
    while (open.length > 1 && indent < open[open.length - 1].indent) open.pop();
    const ordered = /\d/.test(item[2]);
    const li = h("li", { dir: "auto" });
    const top = open[open.length - 1];
    if (top && (indent <= top.indent + 1 || open.length > 8)) {
      top.element.append(li);
      top.item = li;
    } else {
      const element = ordered ? h("ol", { start: Number.parseInt(item[2], 10) }, li) : h("ul", null, li);
      if (top) top.item.append(element);
      else outermost = element;
      open.push({ indent, element, item: li });
    }
    text.push(item[3]);
  }
  write();
  return /** @type {HTMLElement} */ (outermost);
}

/** @param {string} head @param {string[]} rows */
function table(head, rows) {
  const cells = (/** @type {string} */ line) => line.trim().replace(/^\||\|$/g, "").split("|").slice(0, 50);
  return h("div.scroll-x", { tabindex: "0", role: "group" },
    h("table", null,
      h("thead", null, h("tr", null, cells(head).map((cell) => h("th", { dir: "auto", scope: "col" }, inline(cell.trim()))))),
      h("tbody", null, rows.map((row) => h("tr", null, cells(row).map((cell) => h("td", { dir: "auto" }, inline(cell.trim()))))))));
}
