const MIN_SPAN = 50; // milliseconds; over less, the rate is that of a burst in the network and not the model's

/** Measures one answer: time to first token, tokens per second, tokens. Times in milliseconds. */
export class Meter {
  #start;
  #first = null;
  #last = null;
  #numFirst = 0; // tokens of the first chunk: they were made before the clock of the rate starts
  #numTokens = 0;

  /** @param {number} now when the request was sent */
  constructor(now) {
    this.#start = now;
  }

  /**
   * A chunk has arrived.
   * @param {number} numTokens tokens in it
   */
  add(numTokens, now) {
    if (this.#first === null) {
      this.#first = now;
      this.#numFirst = numTokens;
    }
    this.#last = now;
    this.#numTokens += numTokens;
  }

  /** The server's own count, which also knows of tokens without text, such as the end of sequence. */
  correct(numTokens) {
    this.#numTokens = numTokens;
  }

  get numTokens() {
    return this.#numTokens;
  }

  /** Milliseconds from the request to its first token, or null before it. */
  get timeToFirstToken() {
    return this.#first === null ? null : this.#first - this.#start;
  }

  /** Tokens after the first chunk, per second since it; null until the span is long enough to tell. */
  get tokensPerSecond() {
    const numLater = this.#numTokens - this.#numFirst;
    if (this.#first === null || numLater <= 0 || this.#last - this.#first < MIN_SPAN) return null;
    return (numLater * 1000) / (this.#last - this.#first);
  }
}

const FINISH_WORDS = {
  stop: "complete",
  length: "length reached",
  abort: "stopped",
  timeout: "timed out",
  error: "error",
};

/** The line under an answer, as words; `finish` is null while it is being written. */
export function describe(meter, finish = null) {
  const parts = [];
  const wait = meter.timeToFirstToken;
  if (wait !== null) parts.push(`first token ${wait < 1000 ? `${Math.round(wait)} ms` : `${(wait / 1000).toFixed(1)} s`}`);
  const rate = meter.tokensPerSecond;
  if (rate !== null) parts.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tokens/s`);
  parts.push(`${meter.numTokens} ${meter.numTokens === 1 ? "token" : "tokens"}`);
  if (finish !== null) parts.push(FINISH_WORDS[finish] ?? finish);
  return parts;
}
