/** Where a message is written: its text, the files that go with it, and how full the model's context is. */

import { announce, byId, make, onEnter } from "../page/dom.js";

const MAX_FILE_BYTES = 512 * 1024;
const MAX_FILES = 16;
const COUNT_DELAY = 700; // milliseconds of quiet before the context is counted anew

export class Composer {
  #input = byId("chat-input");
  #files = byId("chat-files");
  #error = byId("chat-error");
  #attachments = []; // {name, text}
  #timer = null;
  #deps;

  /**
   * @param {{submit: () => void, editLast: () => void,
   *   count: (content: string, attachments: object[]) => Promise<{used: number, limit: number}|null>}} deps
   */
  constructor(deps) {
    this.#deps = deps;
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      deps.submit();
    });
    onEnter(this.#input, deps.submit);
    this.#input.addEventListener("input", () => this.recount());
    this.#input.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowUp" || this.#input.value !== "") return;
      event.preventDefault();
      deps.editLast();
    });
    const chooser = byId("chat-file");
    byId("chat-attach").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", async () => {
      await this.attach([...chooser.files]);
      chooser.value = "";
    });
    const panel = byId("chat");
    panel.addEventListener("dragover", (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    panel.addEventListener("drop", (event) => {
      if (event.dataTransfer.files.length === 0) return;
      event.preventDefault();
      this.attach([...event.dataTransfer.files]);
    });
  }

  focus() {
    this.#input.focus({ preventScroll: true });
  }

  get isEmpty() {
    return this.#input.value.trim() === "" && this.#attachments.length === 0;
  }

  set text(text) {
    this.#input.value = text;
  }

  /** What is written and attached; the fields are empty afterwards. */
  take() {
    const taken = { content: this.#input.value.trim(), attachments: this.#attachments };
    this.put({ content: "", attachments: [] });
    return taken;
  }

  /** Writes a message back into the fields, so that nothing typed is lost. */
  put({ content, attachments }) {
    this.#input.value = content;
    this.#attachments = attachments;
    this.#showError("");
    this.#showFiles();
    this.recount();
  }

  /** Reads text files; what is no text, or too large, is named. */
  async attach(files) {
    this.#showError("");
    for (const file of files) {
      if (this.#attachments.length >= MAX_FILES) this.#showError(`A message has at most ${MAX_FILES} files.`);
      else if (file.size > MAX_FILE_BYTES) this.#showError(`${file.name} is larger than ${MAX_FILE_BYTES / 1024} KiB.`);
      else await this.#read(file);
    }
    this.#showFiles();
    this.recount();
    this.focus();
  }

  /** Counts the context anew, once the reader has paused. */
  recount() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      const counted = await this.#deps.count(this.#input.value.trim(), this.#attachments);
      if (counted !== null) this.showContext(counted);
    }, COUNT_DELAY);
  }

  /** @param {{used: number, limit: number}} counted in tokens */
  showContext({ used, limit }) {
    const gauge = byId("context-gauge");
    gauge.max = limit;
    gauge.high = limit * 0.85;
    gauge.low = limit * 0.6;
    gauge.optimum = 0;
    gauge.value = Math.min(used, limit);
    // Not `toLocaleString`, which takes a whole frame when it is called for the first time.
    const [shownUsed, shownLimit] = [used, limit].map((count) => String(count).replace(/\B(?=(\d{3})+$)/g, ","));
    const words = `${shownUsed} of ${shownLimit} tokens`;
    byId("context-words").textContent = words;
    byId("context").hidden = false;
    byId("context").classList.toggle("full", used >= limit);
  }

  async #read(file) {
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      if (text.includes("\0")) throw new Error("binary");
      this.#attachments.push({ name: file.name, text });
      announce(`${file.name} is attached.`);
    } catch {
      this.#showError(`${file.name} is not a text file in UTF-8.`);
    }
  }

  #showFiles() {
    this.#files.replaceChildren(...this.#attachments.map((attachment) => {
      const chip = make("li", "chip", attachment.name);
      const remove = make("button", "small", "×");
      remove.setAttribute("aria-label", `Remove ${attachment.name}`);
      remove.addEventListener("click", () => {
        this.#attachments = this.#attachments.filter((other) => other !== attachment);
        this.#showFiles();
        this.recount();
        this.focus();
      });
      chip.append(remove);
      return chip;
    }));
    this.#files.hidden = this.#attachments.length === 0;
  }

  #showError(text) {
    this.#error.textContent = text;
    this.#error.hidden = text === "";
  }
}
