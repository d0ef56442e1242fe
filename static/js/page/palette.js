/** Every command of the page by name: Ctrl+K opens the list, typing narrows it, Enter runs what is marked. */

import { byId, make } from "./dom.js";

export class Palette {
  #dialog = byId("palette");
  #search = byId("palette-search");
  #list = byId("palette-list");
  #commands = [];
  #shown = [];
  #marked = 0;

  constructor() {
    document.addEventListener("keydown", (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
      event.preventDefault();
      if (this.#dialog.open) this.#dialog.close();
      else if (document.querySelector("dialog[open]") === null) this.show();
    });
    this.#search.addEventListener("input", () => this.#find());
    this.#search.addEventListener("keydown", (event) => this.#onKey(event));
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
  }

  /** @param {{name: string, run: () => void, isOffered?: () => boolean}[]} commands shown in this order */
  add(...commands) {
    this.#commands.push(...commands);
  }

  show() {
    this.#search.value = "";
    this.#find();
    this.#dialog.showModal();
  }

  #find() {
    this.#shown = matching(this.#commands.filter(({ isOffered }) => isOffered?.() ?? true), this.#search.value);
    this.#list.replaceChildren(...this.#shown.map((command, index) => {
      const entry = make("li", "command", command.name);
      entry.id = `command-${index}`;
      entry.setAttribute("role", "option");
      entry.addEventListener("click", () => this.#run(command));
      return entry;
    }));
    byId("palette-none").hidden = this.#shown.length > 0;
    this.#mark(0);
  }

  #mark(index) {
    this.#marked = index;
    [...this.#list.children].forEach((entry, at) => entry.setAttribute("aria-selected", String(at === index)));
    this.#list.children[index]?.scrollIntoView({ block: "nearest" });
    if (this.#shown.length > 0) this.#search.setAttribute("aria-activedescendant", `command-${index}`);
    else this.#search.removeAttribute("aria-activedescendant");
  }

  #onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined && this.#shown.length > 0) {
      event.preventDefault();
      this.#mark((this.#marked + step + this.#shown.length) % this.#shown.length);
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      if (this.#shown.length > 0) this.#run(this.#shown[this.#marked]);
    }
  }

  #run(command) {
    this.#dialog.close();
    command.run();
  }
}

/** The commands that have all words of the query, those that begin with it first. */
export function matching(commands, query) {
  const text = query.trim().toLowerCase();
  const words = text.split(/\s+/);
  const found = commands.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  const isFirst = ({ name }) => name.toLowerCase().startsWith(text);
  return [...found.filter(isFirst), ...found.filter((command) => !isFirst(command))];
}
