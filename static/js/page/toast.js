/** A word on what has happened, for a while, with a button that takes it back. */

import { words } from "../words/words.js";
import { byId } from "./dom.js";

const SHOWN = 12_000; // milliseconds; as long as the pointer or the focus is on it, it stays

export class Toast {
  #element = byId("toast");
  #button = byId("toast-undo");
  #undo = null;
  #timer = null;

  constructor() {
    this.#button.textContent = words.common.undo;
    this.#button.addEventListener("click", () => {
      const undo = this.#undo;
      this.hide();
      undo();
    });
    byId("toast-close").addEventListener("click", () => this.hide());
    for (const kind of ["pointerenter", "focusin"]) this.#element.addEventListener(kind, () => clearTimeout(this.#timer));
    for (const kind of ["pointerleave", "focusout"]) this.#element.addEventListener(kind, () => this.#wait());
  }

  /** @param {string} text @param {() => void} [undo] takes it back, where that can be done */
  show(text, undo = null) {
    byId("toast-text").textContent = text;
    this.#button.hidden = undo === null;
    this.#undo = undo;
    this.#element.hidden = false;
    this.#wait();
  }

  hide() {
    clearTimeout(this.#timer);
    this.#element.hidden = true;
    this.#undo = null;
  }

  #wait() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.hide(), SHOWN);
  }
}
