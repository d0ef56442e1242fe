import { describeEnd } from "../words/finish.js";
import { words } from "../words/words.js";

const MIN_SPAN = 50; // milliseconds; over less, the rate is that of a burst in the network and not the model's

/** Measures one answer: time to first token, tokens per second, tokens. Times in milliseconds. */
export class Meter {
  #start;
  #first = null;
  #last = null;
  #numFirst = 0; // tokens of the first chunk: they were made before the clock of the rate starts
  #numTokens = 0;
  #before;
  #isContinuous = true;
  #isFirstMeasured = false;

  /**
   * @param {number} now when the request was sent
   * @param {{timeToFirstToken: number|null, numTokens: number}|null} before what an earlier view has measured of an
   *   answer that is gone on with; the time in between is nobody's, so there is no rate any more
   */
  constructor(now, before = null) {
    this.#start = now;
    this.#before = before;
    if (before === null) return;
    this.#numTokens = before.numTokens;
    this.interrupt();
  }

  /** Tokens may have been made without arriving: their rate is not known any more. */
  interrupt() {
    this.#isContinuous = false;
  }

  /**
   * A chunk has arrived.
   * @param {number} numTokens tokens in it
   */
  add(numTokens, now) {
    if (this.#first === null) {
      this.#first = now;
      this.#isFirstMeasured = this.#isContinuous;
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

  /** Milliseconds from the request to its first token, or null before it, or where nobody has measured it. */
  get timeToFirstToken() {
    if (this.#before !== null) return this.#before.timeToFirstToken;
    return this.#isFirstMeasured ? this.#first - this.#start : null;
  }

  /** Tokens after the first chunk, per second since it; null until the span is long enough, or after an interruption. */
  get tokensPerSecond() {
    if (!this.#isContinuous) return null;
    const numLater = this.#numTokens - this.#numFirst;
    if (this.#first === null || numLater <= 0 || this.#last - this.#first < MIN_SPAN) return null;
    return (numLater * 1000) / (this.#last - this.#first);
  }
}

/** The line under an answer, as words; `finish` is null while it is being written. */
export function describe(meter, finish = null) {
  const parts = [];
  const wait = meter.timeToFirstToken;
  if (wait !== null) parts.push(words.answer.first(wait < 1000 ? `${Math.round(wait)} ms` : `${(wait / 1000).toFixed(1)} s`));
  const rate = meter.tokensPerSecond;
  if (rate !== null) parts.push(words.answer.rate(rate < 10 ? rate.toFixed(1) : Math.round(rate)));
  return [...parts, ...describeEnd(meter.numTokens, finish)];
}
