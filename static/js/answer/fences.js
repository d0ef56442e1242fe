/**
 * Splits streamed text into prose and fenced code, whatever the cuts between chunks.
 *
 * Only what may still become a fence is held back: the beginning of a line of backticks.
 * Pieces are `{kind: "prose"|"code", text}`, `{kind: "open", language}` and `{kind: "close"}`.
 */

const MAY_BECOME_FENCE = /^ {0,3}(`{0,2}|`{3,}[^`]*)$/;
const OPENING = /^ {0,3}(`{3,})([^`]*)$/;
const CLOSING = /^ {0,3}(`{3,})\s*$/;

export class FenceSplitter {
  #held = ""; // a line's beginning that may become a fence
  #isLineStart = true;
  #fence = 0; // backticks of the open fence; 0 in prose

  /** @returns {object[]} the pieces that the text completes */
  feed(text) {
    const pieces = [];
    for (const part of text.split(/(?<=\n)/)) this.#feedLine(part, pieces);
    return pieces;
  }

  /** Gives what was held back; the text is over. */
  end() {
    const pieces = [];
    if (this.#held !== "" && !this.#tryFence(this.#held, pieces)) this.#emit(this.#held, pieces);
    this.#held = "";
    if (this.#fence > 0) pieces.push({ kind: "close" });
    this.#fence = 0;
    return pieces;
  }

  #feedLine(part, pieces) {
    if (part === "") return;
    if (!this.#isLineStart) {
      this.#emit(part, pieces);
      this.#isLineStart = part.endsWith("\n");
      return;
    }
    const line = this.#held + part;
    if (line.endsWith("\n")) {
      if (!this.#tryFence(line.slice(0, -1), pieces)) this.#emit(line, pieces);
      this.#held = "";
    } else if (MAY_BECOME_FENCE.test(line)) {
      this.#held = line;
    } else {
      this.#emit(line, pieces);
      this.#held = "";
      this.#isLineStart = false;
    }
  }

  #tryFence(line, pieces) {
    if (this.#fence === 0) {
      const opening = OPENING.exec(line);
      if (opening === null) return false;
      this.#fence = opening[1].length;
      pieces.push({ kind: "open", language: opening[2].trim() });
      return true;
    }
    const closing = CLOSING.exec(line);
    if (closing === null || closing[1].length < this.#fence) return false;
    this.#fence = 0;
    pieces.push({ kind: "close" });
    return true;
  }

  #emit(text, pieces) {
    const kind = this.#fence > 0 ? "code" : "prose";
    const last = pieces.at(-1);
    if (last?.kind === kind) last.text += text;
    else pieces.push({ kind, text });
  }
}
