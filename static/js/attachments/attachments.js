/** The files that go with a message: read as text, bounded, shown as chips, sent in fences with their names. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";
import { fenced } from "./fence.js";
import { readFile } from "./read_file.js";
import { Refused } from "./refused.js";

const MAX_FILES = 16;
const MAX_CHARACTERS = 2 * 1024 * 1024; // of all files of a message

export class Attachments {
  #files = []; // {name, text}
  #reading = new Set(); // names
  #generation = 0; // what is read for a message that has gone is dropped
  #container = null;
  #onChange;

  /** @param {() => void} onChange called when files come or go */
  constructor(onChange = () => {}) {
    this.#onChange = onChange;
  }

  /** What has been read. @returns {{name: string, text: string}[]} */
  get files() {
    return this.#files;
  }

  set files(files) {
    this.#files = files;
    this.#generation += 1;
    this.#reading.clear();
    this.#show();
  }

  /** The names of files that are being read. */
  get reading() {
    return [...this.#reading];
  }

  /**
   * Reads files and adds them.
   *
   * @param {Iterable<File>} files
   * @returns {Promise<string[]>} a sentence for each that cannot be attached
   */
  async add(files) {
    const generation = this.#generation;
    const problems = [];
    for (const file of files) {
      if (this.#files.length + this.#reading.size >= MAX_FILES) {
        problems.push(words.attachments.tooMany(MAX_FILES));
        break;
      }
      this.#reading.add(file.name);
      this.#show();
      try {
        const text = await readFile(file);
        if (generation !== this.#generation) return problems;
        const length = this.#files.reduce((sum, other) => sum + other.text.length, text.length);
        if (length > MAX_CHARACTERS) throw new Refused(words.attachments.tooMuch);
        this.#files = [...this.#files, { name: file.name, text }];
      } catch (error) {
        problems.push(`${file.name} ${error instanceof Refused ? error.message : words.attachments.isBroken}.`);
      } finally {
        if (generation === this.#generation) this.#reading.delete(file.name);
      }
    }
    this.#show();
    this.#onChange();
    return problems;
  }

  /** The files as parts of a message's content, in the form of the Chat Completions API. */
  toContentParts() {
    return this.#files.map((file) => ({ type: "text", text: fenced(file) }));
  }

  /** Shows the files in a list, from now on. @param {HTMLElement} container a `ul` */
  render(container) {
    this.#container = container;
    this.#show();
  }

  #show() {
    if (this.#container === null) return;
    const chips = this.#files.map((file) => {
      const chip = make("li", "chip", file.name);
      const remove = make("button", "small", "×");
      remove.setAttribute("aria-label", words.attachments.remove(file.name));
      remove.addEventListener("click", () => {
        this.#files = this.#files.filter((other) => other !== file);
        this.#show();
        this.#onChange();
      });
      chip.append(remove);
      return chip;
    });
    const reading = [...this.#reading].map((name) => make("li", "chip reading", `${name} …`));
    this.#container.replaceChildren(...chips, ...reading);
    this.#container.hidden = this.#container.childElementCount === 0;
  }
}
