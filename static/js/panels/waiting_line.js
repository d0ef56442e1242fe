/** What is said while nothing comes: how many requests the server has before this one. */

const PATIENCE = 700; // milliseconds before anything is said
const INTERVAL = 1000;

export class WaitingLine {
  #fetch;
  #show;
  #timer = null;
  #words = "";
  #since = 0;

  /** @param {typeof fetch} fetch @param {(text: string) => void} show */
  constructor(fetch, show) {
    this.#fetch = fetch;
    this.#show = show;
  }

  /** @param {string} words said at once, in the place of the queue */
  start(words = "") {
    this.stop();
    this.#words = words;
    this.#since = performance.now();
    if (words !== "") this.#show(words);
    else this.#timer = setTimeout(() => this.#ask(), PATIENCE);
  }

  stop() {
    if (this.#timer === null && this.#words === "") return;
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#words = "";
    this.#show("");
  }

  async #ask() {
    const timer = this.#timer;
    let stats = null;
    try {
      const response = await this.#fetch("/health", { cache: "no-store" });
      stats = (await response.json()).stats ?? null;
    } catch {
      // The wait itself is shown.
    }
    if (timer !== this.#timer) return; // the first token has come
    const seconds = Math.round((performance.now() - this.#since) / 1000);
    this.#show(describeWait(stats, seconds));
    this.#timer = setTimeout(() => this.#ask(), INTERVAL);
  }
}

/** @param {{num_waiting?: number, num_running?: number}|null} stats */
export function describeWait(stats, seconds) {
  const time = seconds > 0 ? `, ${seconds} s` : "";
  if (stats?.num_waiting > 0) {
    return `In the queue: ${stats.num_waiting} waiting, ${stats.num_running} being answered${time}`;
  }
  return `The prompt is being read${time}`;
}
