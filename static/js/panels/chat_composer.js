/** Where a message is written: its text, the files that go with it, and how full the model's context is. */

import { Attachments } from "../attachments/attachments.js";
import { listenForFiles } from "../attachments/drops.js";
import { announce, byId, onEnter } from "../page/dom.js";

const COUNT_DELAY = 700; // milliseconds of quiet before the context is counted anew

export class Composer {
  #input = byId("chat-input");
  #error = byId("chat-error");
  #attachments = new Attachments(() => {
    this.recount();
    this.focus();
  });
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
      this.#submit();
    });
    onEnter(this.#input, () => this.#submit());
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
    this.#attachments.render(byId("chat-files"));
    listenForFiles((files) => {
      byId("tab-chat").click();
      this.attach(files);
    });
  }

  focus() {
    this.#input.focus({ preventScroll: true });
  }

  get isEmpty() {
    return this.#input.value.trim() === "" && this.#attachments.files.length === 0;
  }

  set text(text) {
    this.#input.value = text;
  }

  /** What is written and attached; the fields are empty afterwards. */
  take() {
    const taken = { content: this.#input.value.trim(), attachments: this.#attachments.files };
    this.put({ content: "", attachments: [] });
    return taken;
  }

  /** Writes a message back into the fields, so that nothing typed is lost. */
  put({ content, attachments }) {
    this.#input.value = content;
    this.#attachments.files = attachments;
    this.#showError("");
    this.recount();
  }

  /** Reads files; what has no text, or too much, is named. */
  async attach(files) {
    this.#showError("");
    announce("");
    const problems = await this.#attachments.add(files);
    this.#showError(problems.join(" "));
    if (problems.length < files.length) announce(`${files.length - problems.length} attached.`);
  }

  /** A message waits for the files that go with it. */
  #submit() {
    const [name] = this.#attachments.reading;
    if (name === undefined) this.#deps.submit();
    else this.#showError(`${name} is still being read.`);
  }

  /** Counts the context anew, once the reader has paused. */
  recount() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(async () => {
      const counted = await this.#deps.count(this.#input.value.trim(), this.#attachments.files);
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

  #showError(text) {
    this.#error.textContent = text;
    this.#error.hidden = text === "";
  }
}
