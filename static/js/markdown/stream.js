/**
 * Markdown that arrives in pieces. Blocks that nothing can change any more are given once; the last one is parsed
 * anew with each piece. However the text is cut, the blocks at the end are those of the whole.
 */

import { parseBlocks } from "./blocks.js";

/** The beginning of a line that may yet become a mark is not shown before it is known what it is. */
const UNDECIDED = /^ {0,3}(?:`{1,}|~{1,}|#{1,6}|[-*+_>|=]{1,2}|\d{1,9}[.)]?)$/;

export class MarkdownStream {
  #lines = []; // whole lines from the beginning of the last block on
  #partial = ""; // the line that has not ended

  /**
   * @param {string} text the next piece
   * @returns {{stable: object[], open: object[]}} the blocks that have become final, in order, and those behind them as
   *   they are now
   */
  feed(text) {
    const lines = (this.#partial + text).split("\n");
    this.#partial = lines.pop();
    for (const line of lines) this.#lines.push(line.endsWith("\r") ? line.slice(0, -1) : line);
    let stable = [];
    if (lines.length > 0) {
      const blocks = parseBlocks(this.#lines);
      if (blocks.length > 1) {
        stable = blocks.slice(0, -1);
        this.#lines = this.#lines.slice(blocks.at(-1).start);
      }
    }
    return { stable, open: parseBlocks(UNDECIDED.test(this.#partial) ? this.#lines : [...this.#lines, this.#partial]) };
  }

  /** The blocks behind the stable ones, now that the text is over. */
  end() {
    return parseBlocks([...this.#lines, this.#partial]);
  }
}

/** The blocks of a whole text. */
export function parseMarkdown(text) {
  return parseBlocks(text.split("\n").map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line)));
}
