/** The events of an answer as they were sent, and its request for other programs. */

import { copyText } from "../page/clipboard.js";
import { make } from "../page/dom.js";
import { LANGUAGES, requestOf } from "./snippets.js";

const MOST_SHOWN = 200;

const words = {
  request: "The request",
  requestFor: "The request for",
  copy: "Copy",
  events: "Events",
  unknownTime: "–",
  shown: (first, last, all) => (last - first + 1 === all ? `All ${all} events.` : `Events ${first} to ${last} of ${all}.`),
  none: "No events.",
  earlier: "Show earlier events",
};

export class RawEvents {
  #list = make("ol", "raw-events");
  #note = make("p", "note");
  #earlier = make("button", "raw-events-earlier", words.earlier);
  #code = make("pre", "code");
  #language = "curl";
  #answer = null;
  #task = null;
  #first = 0; // of the answer's events, the first that the list has
  #numShown = 0; // of the answer's events, those before the list's included
  #most = MOST_SHOWN;

  constructor(element) {
    const chips = make("div", "chips");
    chips.setAttribute("role", "group");
    chips.setAttribute("aria-label", words.requestFor);
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
    const copy = make("button", "", words.copy);
    copy.addEventListener("click", () => copyText(this.#code.textContent, copy));
    chips.append(copy);
    this.#code.tabIndex = 0;
    this.#list.tabIndex = 0;
    this.#list.setAttribute("aria-label", words.events);
    this.#earlier.addEventListener("click", () => this.#showEarlier());
    const earlier = make("div", "chips");
    earlier.append(this.#earlier);
    element.append(
      make("h2", "", words.request), chips, this.#code, make("h2", "", words.events), this.#note, earlier, this.#list,
    );
  }

  show(answer) {
    if (answer !== this.#answer) {
      this.#answer = answer;
      this.#first = this.#numShown = 0;
      this.#most = MOST_SHOWN;
      this.#list.replaceChildren();
    }
    if ((answer?.task ?? null) !== this.#task) this.#showRequest();
    const events = answer?.events ?? [];
    const first = Math.max(this.#first, events.length - this.#most);
    this.#list.append(...events.slice(Math.max(this.#numShown, first)).map(makeItem));
    while (this.#list.childElementCount > events.length - first) this.#list.firstElementChild.remove();
    this.#first = first;
    this.#numShown = events.length;
    this.#showNote();
  }

  #showEarlier() {
    const before = Math.max(0, this.#first - MOST_SHOWN);
    this.#list.prepend(...this.#answer.events.slice(before, this.#first).map(makeItem));
    this.#most += this.#first - before;
    this.#first = before;
    this.#showNote();
  }

  #showNote() {
    const { length } = this.#answer?.events ?? [];
    const all = length + (this.#answer?.numLeftOut ?? 0);
    this.#note.textContent = all === 0 ? words.none : words.shown(this.#first + 1, length, all);
    this.#earlier.hidden = this.#first === 0;
  }

  #showRequest() {
    this.#task = this.#answer?.task ?? null;
    this.#code.textContent = this.#answer === null ? "" : LANGUAGES[this.#language](requestOf(this.#answer.task, this.#answer.server?.origin ?? location.origin));
  }
}

function makeItem({ at, raw }) {
  const item = make("li");
  item.append(make("span", "at", at === null ? words.unknownTime : `${at.toFixed(1)} ms`), make("code", "", JSON.stringify(raw)));
  return item;
}
