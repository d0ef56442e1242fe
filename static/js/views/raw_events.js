/** The events of an answer as they were sent, and its request for other programs. */

import { copyText } from "../page/clipboard.js";
import { make } from "../page/dom.js";
import { LANGUAGES, requestOf } from "./snippets.js";

const MOST_SHOWN = 200;

export class RawEvents {
  #list = make("ol", "raw-events");
  #note = make("p", "note");
  #code = make("pre", "code");
  #language = "curl";
  #answer = null;
  #numShown = 0; // of the answer's events, those that were before the list's included

  constructor(element) {
    const chips = make("div", "chips");
    chips.setAttribute("role", "group");
    chips.setAttribute("aria-label", "The request for");
    for (const name of Object.keys(LANGUAGES)) {
      const button = make("button", "", name);
      button.setAttribute("aria-pressed", String(name === this.#language));
      button.addEventListener("click", () => {
        this.#language = name;
        for (const other of chips.querySelectorAll("[aria-pressed]")) other.setAttribute("aria-pressed", String(other === button));
        this.#showRequest();
      });
      chips.append(button);
    }
    const copy = make("button", "", "Copy");
    copy.addEventListener("click", () => copyText(this.#code.textContent, copy));
    chips.append(copy);
    this.#code.tabIndex = 0;
    this.#list.tabIndex = 0;
    this.#list.setAttribute("aria-label", "Events");
    element.append(make("h2", "", "The request"), chips, this.#code, make("h2", "", "The events"), this.#note, this.#list);
  }

  show(answer) {
    if (answer !== this.#answer) {
      this.#answer = answer;
      this.#numShown = 0;
      this.#list.replaceChildren();
      this.#showRequest();
    }
    const events = answer?.events ?? [];
    if (events.length === this.#numShown && events.length > 0) return;
    const first = Math.max(0, events.length - MOST_SHOWN);
    const before = Math.max(this.#numShown, first);
    this.#note.textContent = first > 0 ? `The last ${MOST_SHOWN} of ${events.length} events.` : `${events.length} events.`;
    this.#numShown = events.length;
    this.#list.append(...events.slice(before).map(({ at, raw }) => {
      const item = make("li");
      item.append(make("span", "at", `${at.toFixed(1)} ms`), make("code", "", JSON.stringify(raw)));
      return item;
    }));
    while (this.#list.childElementCount > MOST_SHOWN) this.#list.firstElementChild.remove();
  }

  #showRequest() {
    this.#code.textContent = this.#answer === null ? "" : LANGUAGES[this.#language](requestOf(this.#answer.task, this.#answer.server?.origin ?? location.origin));
  }
}
