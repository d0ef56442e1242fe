/** The story: one text, continued in place, and kept for this tab, so that a reload in mid-stream goes on with it. */

import { Follower, announce, byId, onEnter, showFigures, swapButtons } from "../page/dom.js";
import { Generation } from "../answer/generation.js";
import { withLength } from "../answer/room.js";

const KEY = "eagre.story"; // in the tab's own storage: {text, before, stream, transport}
const SAVE_INTERVAL = 300; // milliseconds
const MAX_KEPT = 20; // texts that Undo can go back to after a reload

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
  #storage;
  #lastSave = 0;

  /**
   * @param {{transport: (task: object) => object, transportOf: (name: string) => object, sampling: () => object,
   *          fetch: typeof fetch, canGenerate: (isChat: boolean) => boolean, onError: (error: Error) => void}} deps
   * @param {() => Storage} storage the tab's own
   */
  constructor(deps, storage) {
    this.#deps = deps;
    this.#storage = storage;
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
    this.#restore();
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
    this.#keep({ text: "", stream: null });
    this.#showOutcome([], "");
    this.#showControls();
    this.focus();
  }

  /** Begins anew with this text. */
  open(text) {
    this.clear();
    this.#text.value = text;
    this.#keep({ text, stream: null });
    this.#showControls();
  }

  /** Takes the last continuation back. */
  undo() {
    if (this.#generation !== null || this.#before.length === 0) return;
    this.#text.value = this.#before.pop();
    this.#keep({ text: this.#text.value, stream: null });
    this.#showOutcome([], "");
    this.#showControls();
  }

  /** Continues the text; does nothing when it is empty or already being continued. */
  async submit() {
    // A space at the end would part the model from the word it is about to write.
    const prompt = this.#text.value.replace(/ +$/, "");
    if (prompt.trim() === "" || this.#generation !== null || !this.#deps.canGenerate(false)) return;
    const generation = (this.#generation = new Generation()); // from now on it can be stopped
    this.#before.push(this.#text.value);
    this.#text.value = prompt;
    this.#text.scrollTop = this.#text.scrollHeight;
    this.#showOutcome([], "");
    this.#showControls();
    const task = await withLength({ prompt, ...this.#deps.sampling() }, this.#deps.fetch);
    const transport = this.#deps.transport(task);
    await this.#write(generation, transport.name, (signal) => transport.stream(task, { signal }));
  }

  /** Reads a continuation into the text. */
  async #write(generation, transport, open) {
    this.#generation = generation;
    this.#showControls();
    announce("Writing…");

    const kept = { text: this.#text.value, stream: null, transport };
    let continuation = "";
    const outcome = await generation.run(open, {
      onText: (text) => {
        if (this.#before.length === 0) return; // cleared meanwhile
        continuation += text;
        const end = this.#text.value.length;
        this.#follower.around(() => this.#text.setRangeText(text, end, end, "preserve"));
      },
      onFigures: (figures) => showFigures(this.#figures, figures),
      onWaiting: (text) => text !== "" && showFigures(this.#figures, [text]),
      onChunk: (chunk) => {
        // The text and the place move together, whatever is shown by now.
        kept.text += chunk.text;
        const { id, place } = chunk.stream ?? {};
        if (id !== undefined) kept.stream = { id, place: place ?? kept.stream?.place ?? null };
        if (this.#before.length > 0) this.#keep(kept, SAVE_INTERVAL);
      },
    });
    this.#keep({ text: this.#text.value, stream: null, transport });

    this.#generation = null;
    if (this.#before.length === 0) this.#showOutcome([], "");
    else this.#showOutcome(outcome.figures, outcome.finish, outcome.error);
    if (continuation === "" && outcome.error !== null) this.#before.pop(); // nothing to undo
    this.#showControls();
    if (outcome.error === null) announce(continuation);
    else this.#deps.onError(outcome.error);
  }

  #keep(kept, interval = 0) {
    const now = performance.now();
    if (interval > 0 && kept.stream?.place !== null && now - this.#lastSave < interval) return;
    this.#lastSave = now;
    try {
      this.#storage().setItem(KEY, JSON.stringify({ ...kept, before: this.#before.slice(-MAX_KEPT) }));
    } catch {
      // Without a storage, a reload begins anew.
    }
  }

  #restore() {
    let kept = null;
    try {
      kept = JSON.parse(this.#storage().getItem(KEY));
    } catch {
      // No storage, or not our JSON.
    }
    if (typeof kept?.text !== "string" || !Array.isArray(kept.before)) return;
    this.#text.value = kept.text;
    this.#before = kept.before.filter((text) => typeof text === "string");
    this.#showControls();
    const transport = this.#deps.transportOf(kept.transport);
    if (kept.stream !== null && this.#before.length > 0 && transport?.resume !== undefined) {
      this.#write(new Generation({ stream: kept.stream, events: [] }), kept.transport, (signal) => transport.resume(kept.stream, { signal }));
    }
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
