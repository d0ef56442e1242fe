/** Colours a line of code: comments, texts, numbers, keywords, names of functions. What it does not know stays plain. */

import { isLiteral } from "./languages.js";

const NUMBER = /(?:0[xob][\da-f_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:e[+-]?\d+)?)[a-z%]{0,3}\b/iy;
const WORD = /[\p{L}_$@][\p{L}\p{N}_$]*/uy;
const MAX_LENGTH = 2000; // characters of a line; a longer one stays plain

/**
 * @param {string} line
 * @param {string|null} open what ends the text or comment that an earlier line began, as this function gave it
 * @param {object} language see `languages.js`
 * @returns {{parts: (string|object)[], open: {end: string, kind: string}|null}} text, and elements of coloured text
 */
export function highlightLine(line, open, language) {
  if (line.length > MAX_LENGTH) return { parts: [line], open };
  if (language.isDiff) return { parts: diffOf(line), open: null };
  const parts = [];
  let at = 0;
  let plain = 0; // from where on nothing has been given yet
  const give = (kind, end) => {
    if (at > plain) parts.push(line.slice(plain, at));
    parts.push({ tag: "span", attributes: { class: `code-${kind}` }, children: [line.slice(at, end)] });
    at = plain = end;
  };
  const giveUntil = ({ end, kind }, from) => {
    const found = endOf(line, end, from, kind);
    give(kind, found < 0 ? line.length : found);
    return found < 0 ? { end, kind } : null;
  };
  if (open !== null && line !== "") open = giveUntil(open, 0);
  const key = open === null && at === 0 && language.key !== undefined ? matchAt(language.key, line, 0) : null;
  if (key !== null && key !== "") give("key", key.length);
  while (at < line.length && open === null) {
    const character = line[at];
    const starts = opensAt(line, at, language);
    if (starts !== null) {
      open = giveUntil(starts, at + starts.begin.length);
    } else if (isLineComment(line, at, language)) {
      give("comment", line.length);
    } else if (language.quotes?.includes(character)) {
      const found = endOf(line, character, at + 1, "string");
      const end = found < 0 ? line.length : found;
      give(language.hasKeys && /^\s*:/.test(line.slice(end)) ? "key" : "string", end);
    } else {
      giveWord(line, at, language, give, (length) => (at += length));
    }
  }
  if (plain < line.length) parts.push(line.slice(plain));
  return { parts, open };
}

function giveWord(line, at, language, give, skip) {
  for (const kind of ["directive", "variable", "tag"]) {
    const found = language[kind] === undefined ? null : matchAt(language[kind], line, at);
    if (found !== null) return give(kind === "variable" ? "key" : "keyword", at + found.length);
  }
  const number = matchAt(NUMBER, line, at);
  if (number !== null) return give("number", at + number.length);
  const word = matchAt(WORD, line, at);
  if (word === null) return skip(1);
  const end = at + word.length;
  if (language.keywords.has(language.ignoresCase ? word.toLowerCase() : word)) return give("keyword", end);
  if (isLiteral(word)) return give("number", end);
  if (line[end] === "(") return give("call", end);
  return skip(word.length);
}

/** The comment or text over several lines that begins here, or null. */
function opensAt(line, at, language) {
  for (const [kind, pairs] of [["comment", language.block], ["string", language.multiline]]) {
    for (const [begin, end] of pairs ?? []) {
      if (line.startsWith(begin, at)) return { begin, end, kind };
    }
  }
  return null;
}

function isLineComment(line, at, language) {
  const mark = language.line?.find((begin) => line.startsWith(begin, at));
  return mark !== undefined && (mark !== "#" || at === 0 || /[\s;(]/.test(line[at - 1])); // `$#` of a shell is none
}

/** The place behind the delimiter, or -1; a backslash in a text hides the character after it. */
function endOf(line, delimiter, from, kind) {
  for (let at = from; at < line.length; at += 1) {
    if (kind === "string" && line[at] === "\\") at += 1;
    else if (line.startsWith(delimiter, at)) return at + delimiter.length;
  }
  return -1;
}

function diffOf(line) {
  const kind = { "+": "inserted", "-": "deleted", "@": "comment" }[line[0]];
  return kind === undefined ? [line] : [{ tag: "span", attributes: { class: `code-${kind}` }, children: [line] }];
}

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text)?.[0] ?? null;
}
