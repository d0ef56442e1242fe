/**
 * The text of a block of code in the document. It is coloured once it comes near the screen, and from then on line by
 * line as it grows: what a token costs does not depend on the length of the block.
 */

import { highlightLine } from "./highlight.js";
import { languageOf } from "./languages.js";
import { whenNear } from "./near.js";

const MAX_COLOURED = 200_000; // characters at once

const views = new WeakMap(); // of the elements

/** @param {{attributes: object, children: string[], language: string}} part @returns {HTMLElement} */
export function buildCode(part) {
  const element = document.createElement("code");
  const view = new CodeView(element, languageOf(part.language));
  views.set(element, view);
  view.show(textOf(part));
  return element;
}

/** Shows what the part has more than the element; returns false where it has something else. */
export function updateCode(element, old, part) {
  if (old.language !== part.language) return false;
  return views.get(element).show(textOf(part));
}

class CodeView {
  #element;
  #language;
  #text = "";
  #plain = document.createTextNode("\n"); // while nothing is coloured, all; then the end of the last line
  #isColoured = false;
  #line = ""; // the last one, which may go on
  #lineParts = []; // its nodes
  #open = null; // what an earlier line has begun

  constructor(element, language) {
    this.#element = element;
    this.#language = language;
    element.append(this.#plain);
    if (language !== null) whenNear(element, () => this.#colour());
  }

  /** @param {string} text whole, without its last line end */
  show(text) {
    if (!text.startsWith(this.#text)) return false;
    const added = text.slice(this.#text.length);
    this.#text = text;
    if (this.#isColoured) this.#append(added);
    else if (added !== "") this.#plain.insertData(this.#plain.length - 1, added);
    return true;
  }

  #colour() {
    if (this.#text.length > MAX_COLOURED) return;
    this.#isColoured = true;
    this.#plain.data = "\n";
    this.#append(this.#text);
  }

  #append(text) {
    if (text === "") return;
    for (const node of this.#lineParts) node.remove();
    const lines = (this.#line + text).split("\n");
    this.#line = lines.pop();
    const nodes = [];
    for (const line of lines) {
      const { parts, open } = highlightLine(line, this.#open, this.#language);
      this.#open = open;
      nodes.push(...parts.map(toNode), "\n");
    }
    this.#lineParts = highlightLine(this.#line, this.#open, this.#language).parts.map(toNode);
    this.#plain.before(...nodes, ...this.#lineParts);
  }
}

function toNode(part) {
  if (typeof part === "string") return document.createTextNode(part);
  const element = document.createElement("span");
  element.className = part.attributes.class;
  element.textContent = part.children[0];
  return element;
}

function textOf(part) {
  const text = part.children[0] ?? "";
  return text.endsWith("\n") ? text.slice(0, -1) : text;
}
