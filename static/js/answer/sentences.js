/** Streamed text for the ear: whole sentences, never single tokens. */

const END = /[.!?…。！？]["')\]”’]*\s+|\n+/g;

export class Sentences {
  #rest = "";

  /** @returns {string} the sentences that the text completes, or an empty text */
  feed(text) {
    this.#rest += text;
    let end = 0;
    END.lastIndex = 0;
    while (END.exec(this.#rest) !== null) end = END.lastIndex;
    const whole = this.#rest.slice(0, end);
    this.#rest = this.#rest.slice(end);
    return whole.trim();
  }

  /** What is left when the text is over. */
  end() {
    const rest = this.#rest.trim();
    this.#rest = "";
    return rest;
  }
}

/** Speaks what is told, but not faster than it can be heard: what comes meanwhile waits and is said together. */
export class Speaker {
  #say;
  #interval;
  #waiting = [];
  #timer = null;

  /** @param {(text: string) => void} say */
  constructor(say, interval = 1500) {
    this.#say = say;
    this.#interval = interval;
  }

  tell(text) {
    if (text === "") return;
    this.#waiting.push(text);
    if (this.#timer === null) this.#speak();
  }

  #speak() {
    if (this.#waiting.length > 0) this.#say(this.#waiting.splice(0).join(" "));
    this.#timer = setTimeout(() => {
      this.#timer = null;
      if (this.#waiting.length > 0) this.#speak();
    }, this.#interval);
  }
}
