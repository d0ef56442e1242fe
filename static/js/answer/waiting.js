/** What is said before the first token: the place in the queue, how far the prompt is, or that the connection is lost. */

import { words } from "../words/words.js";

const PATIENCE = 700; // milliseconds before anything is said
const INTERVAL = 1000;

export class Waiting {
  #show;
  #timer = null;
  #said = "";
  #progress = null; // what the server said last
  #since = 0;

  /** @param {(text: string) => void} show an empty text takes away what was said */
  constructor(show) {
    this.#show = show;
  }

  /** @param {string} said shown at once, in the place of what the server tells */
  start(said = "") {
    this.stop();
    this.#said = said;
    this.#since = performance.now();
    if (said !== "") this.#show(said);
    this.#timer = setTimeout(() => this.#say(), PATIENCE);
  }

  /** @param {object} progress the server's `prompt_progress` */
  tell(progress) {
    this.#progress = progress;
    this.#said = "";
    if (this.#timer === null) this.start();
    else if (performance.now() - this.#since >= PATIENCE) this.#say();
  }

  stop() {
    if (this.#timer === null) return;
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#show("");
  }

  #say() {
    clearTimeout(this.#timer);
    this.#show(this.#said || describeWait(this.#progress, Math.round((performance.now() - this.#since) / 1000)));
    this.#timer = setTimeout(() => this.#say(), INTERVAL);
  }
}

/** @param {object|null} progress @param {number} seconds for which the reader has waited */
export function describeWait(progress, seconds) {
  return seconds > 0 ? words.answer.after(whatFor(progress), seconds) : whatFor(progress);
}

function whatFor(progress) {
  switch (progress?.stage) {
    case "loading":
      return words.answer.loading(progress.detail);
    case "queued": {
      const { detail, queue_position: position, estimated_seconds: seconds } = progress;
      return detail ? words.answer.waiting(detail) : words.answer.queued(position, seconds === null ? null : Math.ceil(seconds));
    }
    case "prompt": {
      const { detail, processed, total, cache } = progress;
      return detail ? words.answer.waiting(detail) : words.answer.prompt(processed, total, cache);
    }
    default:
      return words.answer.waitingForToken;
  }
}
