/**
 * Markdown that arrives in pieces. Blocks that nothing can change any more are given once; the last one is parsed
 * anew with each piece. However the text is cut, the blocks at the end are those of the whole.
 */

import { jsonBlockAt, parseBlocks } from "./blocks.js";

/** The beginning of a line that may yet become a mark is not shown before it is known what it is. */
const UNDECIDED = /^ {0,3}(?:`{1,}|~{1,}|#{1,6}|[-*+_>|=]{1,2}|\d{1,9}[.)]?|\\|\${1,2})$/;

export class MarkdownStream {
  #lines = []; // whole lines from the beginning of the last block on
  #partial = ""; // the line that has not ended
  #isFirst = true; // nothing has become final, so the answer may be JSON

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
      const blocks = this.#parse(this.#lines);
      if (blocks.length > 1) {
        this.#isFirst = false;
        stable = blocks.slice(0, -1);
        this.#lines = this.#lines.slice(blocks.at(-1).start);
      }
    }
    return { stable, open: this.#parse(UNDECIDED.test(this.#partial) ? this.#lines : [...this.#lines, this.#partial]) };
  }

  /** The blocks behind the stable ones, now that the text is over. */
  end() {
    return this.#parse([...this.#lines, this.#partial]);
  }

  #parse(lines) {
    return this.#isFirst ? parseText(lines) : parseBlocks(lines);
  }
}

/** The blocks of a whole text. */
export function parseMarkdown(text) {
  return parseText(text.split("\n").map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line)));
}

/** The blocks of a text from its beginning: what begins as JSON is shown as code up to its end. */
function parseText(lines) {
  const found = jsonBlockAt(lines);
  if (found === null) return parseBlocks(lines);
  const rest = parseBlocks(lines.slice(found.end));
  return [found.block, ...rest.map((block) => ({ ...block, start: block.start + found.end }))];
}
