/** Gathers streamed text and hands it on once per animation frame, however many tokens a frame brings. */
export class FrameText {
  #text = "";
  #frame = null;
  #write;
  #schedule;
  #cancel;

  /** @param {(text: string) => void} write */
  constructor(write, { schedule = requestAnimationFrame, cancel = cancelAnimationFrame } = {}) {
    this.#write = write;
    this.#schedule = schedule;
    this.#cancel = cancel;
  }

  push(text) {
    if (text === "") return;
    this.#text += text;
    this.#frame ??= this.#schedule.call(globalThis, () => this.flush());
  }

  /** Writes what there is now; the end of an answer does not wait for a frame that a hidden page never gets. */
  flush() {
    if (this.#frame !== null) this.#cancel.call(globalThis, this.#frame);
    this.#frame = null;
    const text = this.#text;
    this.#text = "";
    if (text !== "") this.#write(text);
  }
}
