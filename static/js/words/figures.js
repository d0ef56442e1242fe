/**
 * The figures of an answer: kept as names and numbers, and put into words where they are shown, in the reader's language.
 *
 * @typedef {[name: "first"|"rate"|"tokens"|"stoppedAt"|"end"|"edited"|"given"|"branch", value?: number|string]|string} Figure
 *   "first" are milliseconds, "rate" tokens per second, "end" is the reason why the answer ended, and "branch" the place of
 *   the token at which it parts from another one. A text is of a page
 *   that kept words, and stays as it is
 */

import { words } from "./words.js";

const WORDS = {
  first: (wait) => words.answer.first(wait < 1000 ? `${Math.round(wait)} ms` : `${(wait / 1000).toFixed(1)} s`),
  rate: (rate) => words.answer.rate(rate < 10 ? rate.toFixed(1) : Math.round(rate)),
  tokens: (count) => words.answer.numTokens(count),
  stoppedAt: (count) => words.answer.stoppedAt(count),
  end: (reason) => words.answer.finish[reason] ?? reason,
  edited: () => words.chat.edited,
  given: () => words.chat.given,
  branch: (place) => words.chat.branchAt(place),
};

/** @param {Figure[]} figures @returns {string[]} */
export function tellFigures(figures) {
  return figures.map((figure) => (typeof figure === "string" ? figure : WORDS[figure[0]](figure[1])));
}

/** How many tokens an answer has, and why it ended; `finish` is null where it has not. @returns {Figure[]} */
export function figuresOfEnd(numTokens, finish) {
  if (finish === "length") return [["stoppedAt", numTokens]];
  return finish === null ? [["tokens", numTokens]] : [["tokens", numTokens], ["end", finish]];
}

/** Whether a value of a file is a figure. */
export function isFigure(value) {
  if (typeof value === "string") return true;
  if (!Array.isArray(value) || !Object.hasOwn(WORDS, value[0])) return false;
  return value[0] === "end" ? typeof value[1] === "string" : WORDS[value[0]].length === 0 || Number.isFinite(value[1]);
}
