/** The story: one text, continued in place. */

import { Follower, announce, byId, onEnter, showFigures, swapButtons } from "../page/dom.js";
import { Generation } from "../answer/generation.js";

export class Story {
  #text = byId("story-text");
  #continue = byId("story-continue");
  #stop = byId("story-stop");
  #undo = byId("story-undo");
  #retry = byId("story-retry");
  #figures = byId("story-figures");
  #error = byId("story-error");
  #page = byId("story-page");
  #examples = byId("story-examples");
  #follower = new Follower(this.#text);
  #generation = null;
  #before = []; // the text before each continuation, for Undo
  #deps;

  /**
   * @param {{transport: () => object, sampling: () => object,
   *          canGenerate: () => boolean, onError: (error: Error) => void}} deps
   */
  constructor(deps) {
    this.#deps = deps;
    byId("story-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    onEnter(this.#text, () => this.submit());
    this.#text.addEventListener("input", () => this.#showControls());
    this.#stop.addEventListener("click", () => this.stop());
    this.#undo.addEventListener("click", () => this.undo());
    this.#retry.addEventListener("click", () => {
      this.undo();
      this.submit();
    });
    byId("story-clear").addEventListener("click", () => this.clear());
    for (const example of this.#examples.querySelectorAll("button")) {
      example.addEventListener("click", () => {
        this.#text.value = example.dataset.prompt;
        this.submit();
      });
    }
    this.#showControls();
  }

  focus() {
    this.#text.focus({ preventScroll: true });
  }

  stop() {
    this.#generation?.stop();
  }

  clear() {
    this.stop();
    this.#before = [];
    this.#text.value = "";
    this.#showOutcome([], "");
    this.#showControls();
    this.focus();
  }

  /** Takes the last continuation back. */
  undo() {
    if (this.#generation !== null || this.#before.length === 0) return;
    this.#text.value = this.#before.pop();
    this.#showOutcome([], "");
    this.#showControls();
  }

  /** Continues the text; does nothing when it is empty or already being continued. */
  async submit() {
    // A space at the end would part the model from the word it is about to write.
    const prompt = this.#text.value.replace(/ +$/, "");
    if (prompt.trim() === "" || this.#generation !== null || !this.#deps.canGenerate()) return;
    this.#before.push(this.#text.value);
    this.#text.value = prompt;
    this.#text.scrollTop = this.#text.scrollHeight;
    this.#showOutcome([], "");
    const generation = new Generation();
    this.#generation = generation;
    this.#showControls();
    announce("Writing…");

    let continuation = "";
    const task = { prompt, ...this.#deps.sampling() };
    const outcome = await generation.run((signal) => this.#deps.transport(task).stream(task, { signal }), {
      onText: (text) => {
        if (this.#before.length === 0) return; // cleared meanwhile
        continuation += text;
        const end = this.#text.value.length;
        this.#follower.around(() => this.#text.setRangeText(text, end, end, "preserve"));
      },
      onFigures: (figures) => showFigures(this.#figures, figures),
    });

    this.#generation = null;
    if (this.#before.length === 0) this.#showOutcome([], "");
    else this.#showOutcome(outcome.figures, outcome.finish, outcome.error);
    if (continuation === "" && outcome.error !== null) this.#before.pop(); // nothing to undo
    this.#showControls();
    if (outcome.error === null) announce(continuation);
    else this.#deps.onError(outcome.error);
  }

  #showOutcome(figures, finish, error = null) {
    showFigures(this.#figures, figures);
    this.#page.dataset.finish = finish;
    this.#error.textContent = error?.message ?? "";
    this.#error.hidden = error === null;
  }

  #showControls() {
    const isBusy = this.#generation !== null;
    this.#text.readOnly = isBusy;
    this.#page.classList.toggle("writing", isBusy);
    if (isBusy) swapButtons(this.#continue, this.#stop);
    else swapButtons(this.#stop, this.#continue);
    this.#undo.disabled = this.#retry.disabled = isBusy || this.#before.length === 0;
    this.#examples.hidden = isBusy || this.#before.length > 0;
  }
}
