/** Tokens as elements: the text of each with what is not seen made visible, and hatched where the cache had it. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";

const MOST = 400; // of a long prompt, its end

/** A token's text with what is not seen made visible. */
export function shown(text) {
  return text === "" ? "∅" : text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥");
}

/**
 * The tokens of a prompt.
 *
 * @param {number[]} ids @param {string[]|null} texts of each; null where they are not known @param {number} numCached
 * @returns {HTMLElement[]}
 */
export function promptTokens(ids, texts, numCached) {
  const first = Math.max(0, ids.length - MOST);
  const spans = ids.slice(first).map((id, at) => {
    const isCached = first + at < numCached;
    const span = make("span", isCached ? "token cached" : "token", shown(texts?.[first + at] ?? `#${id}`));
    span.title = words.answer.tokenTitle(id, isCached);
    return span;
  });
  if (first > 0) spans.unshift(make("span", "note", words.answer.earlierTokens(first)));
  return spans;
}
