import { figuresOfEnd } from "../words/figures.js";

const NOTHING = Object.freeze({ numTokens: 0, numTimed: 0, milliseconds: 0 });
const MIN_SPAN = 50; // milliseconds; over less, the rate is that of a burst in the network and not the model's

/** Measures one answer: time to first token, tokens per second, tokens. Times in milliseconds. */
export class Meter {
  #start;
  #first = null;
  #last = null;
  #numFirst = 0; // tokens of the first chunk: they were made before the clock of the rate starts
  #numTokens = 0;
  #before;
  #earlier = NOTHING;
  #isContinuous = true;
  #isFirstMeasured = false;

  /**
   * @param {number} now when the request was sent
   * @param {import("./recorder.js").Before|null} before what has been measured of an answer that is gone on with. The
   *   time since an earlier view is nobody's, so that there is no rate any more; the time between two requests for one
   *   answer is left out of it
   */
  constructor(now, before = null) {
    this.#start = now;
    this.#before = before;
    if (before === null) return;
    this.#earlier = before.earlier ?? NOTHING;
    this.#numTokens = before.numTokens;
    if (before.isResumed || this.#earlier.milliseconds === null) this.interrupt();
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

  /** The server's own count for this request, which also knows of tokens without text, such as the end of sequence. */
  correct(numTokens) {
    this.#numTokens = this.#earlier.numTokens + numTokens;
  }

  /** What a later request for the same answer begins with. @returns {import("./recorder.js").Measured} */
  get measured() {
    if (!this.#isContinuous) return { numTokens: this.#numTokens, numTimed: 0, milliseconds: null };
    return { numTokens: this.#numTokens, numTimed: this.#numTimed, milliseconds: this.#milliseconds };
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
    if (this.#numTimed <= 0 || this.#milliseconds < MIN_SPAN) return null;
    return (this.#numTimed * 1000) / this.#milliseconds;
  }

  /** Tokens after the first chunk of each request. */
  get #numTimed() {
    const numNew = this.#numTokens - this.#earlier.numTokens;
    return this.#earlier.numTimed + Math.max(0, numNew - this.#numFirst);
  }

  /** The time in which they came. */
  get #milliseconds() {
    return this.#earlier.milliseconds + (this.#last ?? 0) - (this.#first ?? 0);
  }
}

/** The line under an answer; `finish` is null while it is being written. @returns {import("../words/figures.js").Figure[]} */
export function figuresOf(meter, finish = null) {
  const measured = [["first", meter.timeToFirstToken], ["rate", meter.tokensPerSecond]];
  return [...measured.filter(([, value]) => value !== null), ...figuresOfEnd(meter.numTokens, finish)];
}
