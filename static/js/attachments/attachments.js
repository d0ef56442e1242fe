/** The files that go with a message: texts and pictures, bounded, and shown as chips. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";
import { isPicture, readPicture } from "./picture.js";
import { readFile } from "./read_file.js";
import { Refused } from "./refused.js";

const MAX_FILES = 16;
const MAX_CHARACTERS = 2 * 1024 * 1024; // of all files of a message

export class Attachments {
  #files = []; // {name, text} or, of a picture, {name, url}
  #reading = new Set(); // names
  #generation = 0; // what is read for a message that has gone is dropped
  #container = null;
  #onChange;
  #seesPictures;

  /** @param {() => void} onChange called when files come or go @param {() => boolean} seesPictures whether the model does */
  constructor(onChange = () => {}, seesPictures = () => true) {
    this.#onChange = onChange;
    this.#seesPictures = seesPictures;
  }

  /** What has been read. @returns {{name: string, text?: string, url?: string}[]} */
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
   * @returns {Promise<string[]|null>} a sentence for each that cannot be attached; null where their message has gone
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
        const read = { name: file.name, ...(await this.#read(file)) };
        if (generation !== this.#generation) return null;
        const length = [...this.#files, read].reduce((sum, { text, url }) => sum + (text ?? url).length, 0);
        if (length > MAX_CHARACTERS) throw new Refused(words.attachments.tooMuch);
        this.#files = [...this.#files, read];
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

  /** The first button that removes a picture, or null. */
  get pictureButton() {
    return this.#container?.querySelector(".picture button") ?? null;
  }

  /** Shows the files in a list, from now on. @param {HTMLElement} container a `ul` */
  render(container) {
    this.#container = container;
    this.#show();
  }

  async #read(file) {
    if (!isPicture(file)) return { text: await readFile(file) };
    if (!this.#seesPictures()) throw new Refused(words.attachments.isPicture);
    return { url: await readPicture(file) };
  }

  #show() {
    if (this.#container === null) return;
    const chips = this.#files.map((file) => {
      const chip = make("li", file.url === undefined ? "chip" : "chip picture", file.name);
      if (file.url !== undefined) {
        const preview = make("img");
        preview.src = file.url;
        preview.alt = ""; // its name stands beside it
        chip.prepend(preview);
      }
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
