/** The events of an answer as they were sent, and its request for other programs. */

import { copyText } from "../page/clipboard.js";
import { make } from "../page/dom.js";
import { words } from "../words/words.js";
import { LANGUAGES, requestOf } from "./snippets.js";

const MOST_SHOWN = 200;

export class RawEvents {
  #list = make("ol", "raw-events");
  #note = make("p", "note");
  #about = make("p", "about"); // what the request is
  #earlier = make("button", "raw-events-earlier", words.wire.earlier);
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
    chips.setAttribute("aria-label", words.wire.requestFor);
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
    const copy = make("button", "", words.common.copy);
    copy.addEventListener("click", () => copyText(this.#code.textContent, copy));
    chips.append(copy);
    this.#code.tabIndex = 0;
    this.#list.tabIndex = 0;
    this.#list.setAttribute("aria-label", words.wire.events);
    this.#earlier.addEventListener("click", () => this.#showEarlier());
    const earlier = make("div", "chips");
    earlier.append(this.#earlier);
    element.append(
      make("h2", "", words.wire.request), this.#about, chips, this.#code, make("h2", "", words.wire.events), this.#note, earlier, this.#list,
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
    this.#note.textContent = all === 0 ? words.wire.none : words.wire.shown(this.#first + 1, length, all);
    this.#earlier.hidden = this.#first === 0;
  }

  #showRequest() {
    this.#task = this.#answer?.task ?? null;
    const asked = this.#answer?.asked?.() ?? null; // the task is that of a replay then
    const task = asked ?? this.#task;
    const isTokens = Array.isArray(task?.prompt) && task.prompt.length > 0;
    this.#about.textContent = asked !== null ? words.wire.asked : isTokens ? words.wire.asTokens : "";
    this.#code.textContent = task === null ? "" : LANGUAGES[this.#language](requestOf(task, this.#answer.server?.origin ?? location.origin));
  }
}

function makeItem({ at, raw }) {
  const item = make("li");
  item.append(make("span", "at", at === null ? "–" : `${at.toFixed(1)} ms`), make("code", "", JSON.stringify(raw)));
  return item;
}
