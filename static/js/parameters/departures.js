/**
 * What the reader has set otherwise than the model recommends: it holds for all conversations, so it stands beside every
 * message, and is taken back there.
 */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";

const MOST_SHOWN = 3;

/** @typedef {{name: string, text: string}} Departure `name` is that of the setting */
export class Departures {
  #deps;
  #element = make("div", "departures");
  #form;
  #shown = "[]";

  /**
   * @param {HTMLFormElement} form has its buttons in `.actions`
   * @param {{list: () => Departure[], reset: (names: string[]) => void, reveal: (name: string) => void}} deps
   */
  constructor(form, deps) {
    this.#form = form;
    this.#deps = deps;
    this.#element.setAttribute("role", "group");
    this.#element.setAttribute("aria-label", words.parameters.departures);
    this.#element.hidden = true;
    form.querySelector(".actions").before(this.#element);
  }

  update() {
    const list = this.#deps.list();
    const text = JSON.stringify(list);
    if (text === this.#shown) return; // nobody's focus is taken away for nothing
    this.#shown = text;
    this.#element.hidden = list.length === 0;
    const parts = list.slice(0, MOST_SHOWN).map((one) => this.#chip(one));
    const rest = list.slice(MOST_SHOWN);
    if (rest.length > 0) parts.push(this.#button(words.parameters.departuresMore(rest.length), () => this.#deps.reveal(rest[0].name)));
    if (list.length > 1) parts.push(this.#button(words.parameters.resetAll, () => this.#reset(list.map(({ name }) => name))));
    this.#element.replaceChildren(make("span", "note", `${words.parameters.departures}:`), ...parts);
  }

  #chip({ name, text }) {
    const chip = make("span", "chip");
    const reset = this.#button("×", () => this.#reset([name]));
    reset.title = words.parameters.resetOne(text);
    reset.setAttribute("aria-label", reset.title);
    chip.append(this.#button(text, () => this.#deps.reveal(name)), reset);
    return chip;
  }

  #button(label, run) {
    const button = make("button", "small", label);
    button.addEventListener("click", run);
    return button;
  }

  #reset(names) {
    this.#deps.reset(names);
    this.#form.querySelector("textarea").focus({ preventScroll: true }); // the button is gone
  }
}
