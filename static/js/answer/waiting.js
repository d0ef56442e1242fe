/** What is said before the first token: the place in the queue, how far the prompt is, or that the connection is lost. */

const PATIENCE = 700; // milliseconds before anything is said
const INTERVAL = 1000;

export class Waiting {
  #show;
  #timer = null;
  #words = "";
  #progress = null; // what the server said last
  #since = 0;

  /** @param {(text: string) => void} show an empty text takes away what was said */
  constructor(show) {
    this.#show = show;
  }

  /** @param {string} words said at once, in the place of what the server tells */
  start(words = "") {
    this.stop();
    this.#words = words;
    this.#since = performance.now();
    if (words !== "") this.#show(words);
    this.#timer = setTimeout(() => this.#say(), PATIENCE);
  }

  /** @param {object} progress the server's `prompt_progress` */
  tell(progress) {
    this.#progress = progress;
    this.#words = "";
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
    this.#show(this.#words || describeWait(this.#progress, Math.round((performance.now() - this.#since) / 1000)));
    this.#timer = setTimeout(() => this.#say(), INTERVAL);
  }
}

/** @param {object|null} progress @param {number} seconds for which the reader has waited */
export function describeWait(progress, seconds) {
  return `${whatFor(progress)}${seconds > 0 ? `, ${seconds} s` : ""}`;
}

function whatFor(progress) {
  switch (progress?.stage) {
    case "loading":
      return `The model is being loaded${progress.detail ? ` (${progress.detail})` : ""}`;
    case "queued": {
      if (progress.detail) return `Waiting: ${progress.detail}`;
      const before = progress.queue_position === 0 ? "next" : `${progress.queue_position} before this one`;
      const estimate = progress.estimated_seconds === null ? "" : `, about ${Math.ceil(progress.estimated_seconds)} s to go`;
      return `In the queue: ${before}${estimate}`;
    }
    case "prompt": {
      if (progress.detail) return `Waiting: ${progress.detail}`;
      const cached = progress.cache > 0 ? ` (${progress.cache} from the cache)` : "";
      return `The prompt is being read: ${progress.processed} of ${progress.total} tokens${cached}`;
    }
    default:
      return "Waiting for the first token";
  }
}
