/** The end of an answer in words. */

import { words } from "./words.js";

/** How many tokens an answer has, and why it ended; `finish` is null where it has not. @returns {string[]} */
export function describeEnd(numTokens, finish) {
  if (finish === "length") return [words.answer.stoppedAt(numTokens)];
  const parts = [words.answer.numTokens(numTokens)];
  return finish === null ? parts : [...parts, words.answer.finish[finish] ?? finish];
}
