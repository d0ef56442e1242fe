/**
 * Keeps clicks from what has moved under the pointer: the second click of two was meant for what lay there before. Keys
 * and programs mean what they press.
 */

const PAUSE = 400; // milliseconds

export class ClickGuard {
  #isMoving = false;
  #movedAt = -Infinity;
  #now;

  /** @param {() => number} now on the clock of events */
  constructor(now = () => performance.now()) {
    this.#now = now;
  }

  /** Runs what moves other things into the place that was clicked on. */
  async during(move) {
    this.#isMoving = true;
    try {
      await move();
    } finally {
      this.#isMoving = false;
      this.#movedAt = this.#now();
    }
  }

  /** Whether a click was not meant for what it hit. @param {MouseEvent} event */
  isStray({ detail, timeStamp }) {
    return detail > 0 && (this.#isMoving || timeStamp < this.#movedAt + PAUSE);
  }
}
