/**
 * The text of one block: emphasis, code, links. Gives a list of strings and of elements
 * `{tag, attributes, children}`. There is no HTML in it: `<b>` is three characters.
 *
 * Every look ahead is bounded, so that no text takes longer than its length allows.
 */

import { inlineFormulaAt } from "./formula.js";

const SPECIAL = /[\\`*_~[!<hH\n$]/g;
// Backslashes that TeX needs stay, for a formula whose end is missing: `\(`, `\[`, `\{`, `\,`, `\;`, `\:`, `\\`.
const ESCAPED = /[!"#$%&'*+./<=>?@^_`|~-]/;
const LINK = /!?\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,1000})\]\(\s*(<[^<>\n]{0,2000}>|[^\s()<]{0,2000}(?:\([^\s()]{0,200}\)[^\s()]{0,200}){0,8})(?:\s+"[^"\n]{0,500}")?\s*\)/y;
const BRACKETED_ADDRESS = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/iy;
const BARE_ADDRESS = /https?:\/\/[^\s<>"`]{1,2000}/iy;
const WORD = /[\p{L}\p{N}]/u;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const MAX_LOOK_BACK = 64; // delimiters
const MAX_DEPTH = 6; // of links within links' texts and the like

/** @returns {(string|object)[]} */
export function parseInline(text, depth = 0) {
  const parts = []; // strings, elements, and delimiters {run, count, mayOpen, mayClose}
  const unclosed = new Set(); // lengths of backtick runs that nothing closes from here on
  let begin = 0;
  const flush = (end) => {
    if (end > begin) parts.push(text.slice(begin, end));
  };
  SPECIAL.lastIndex = 0;
  for (let match; (match = SPECIAL.exec(text)) !== null; ) {
    const at = match.index;
    const found = depth < MAX_DEPTH ? special(text, at, unclosed, depth) : null;
    if (found === null) continue;
    flush(at);
    if (found.part !== "") parts.push(found.part);
    begin = SPECIAL.lastIndex = found.end;
  }
  flush(text.length);
  return merge(emphasise(parts));
}

/** What stands at `at`: `{part, end}`, or null where it is plain text. */
function special(text, at, unclosed, depth) {
  const character = text[at];
  switch (character) {
    case "$":
      return inlineFormulaAt(text, at);
    case "\\":
      if (text[at + 1] === "\\") return { part: "\\\\", end: at + 2 };
      if (text[at + 1] === "(" || text[at + 1] === "[") return inlineFormulaAt(text, at);
      return ESCAPED.test(text[at + 1] ?? "") ? { part: text[at + 1], end: at + 2 } : null;
    case "`":
      return codeAt(text, at, unclosed);
    case "!":
      return text[at + 1] === "[" ? linkAt(text, at, depth) : null; // a picture is a link: nothing is fetched
    case "[":
      return linkAt(text, at, depth);
    case "<": {
      const match = stickyMatch(BRACKETED_ADDRESS, text, at);
      return match && { part: anchor(match[1], [match[1]]), end: at + match[0].length };
    }
    case "h":
    case "H":
      return addressAt(text, at);
    case "\n":
      return { part: { tag: "br", attributes: {}, children: [] }, end: at + 1 };
    default:
      return delimiterAt(text, at);
  }
}

function codeAt(text, at, unclosed) {
  const length = runLength(text, at);
  if (!unclosed.has(length)) {
    for (let next = text.indexOf("`", at + length); next >= 0; ) {
      const closing = runLength(text, next);
      if (closing === length) {
        let code = text.slice(at + length, next).replaceAll("\n", " ");
        if (code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "") code = code.slice(1, -1);
        return { part: { tag: "code", attributes: {}, children: [code] }, end: next + length };
      }
      next = text.indexOf("`", next + closing);
    }
    unclosed.add(length);
  }
  return { part: text.slice(at, at + length), end: at + length };
}

function linkAt(text, at, depth) {
  const match = stickyMatch(LINK, text, at);
  if (match === null) return null;
  const [whole, label, target] = match;
  const address = target.startsWith("<") ? target.slice(1, -1) : target;
  if (!isSafe(address)) return { part: whole, end: at + whole.length };
  const children = label === "" ? [address] : parseInline(label, depth + 1).map(withoutAnchors).flat();
  return { part: anchor(address, children), end: at + whole.length };
}

function addressAt(text, at) {
  if (at > 0 && WORD.test(text[at - 1])) return null;
  const match = stickyMatch(BARE_ADDRESS, text, at);
  if (match === null) return null;
  let address = match[0].replace(/[.,;:!?*_~'\]]+$/, "");
  while (address.endsWith(")") && count(address, ")") > count(address, "(")) address = address.slice(0, -1);
  return { part: anchor(address, [address]), end: at + address.length };
}

function delimiterAt(text, at) {
  const length = runLength(text, at);
  const run = text[at];
  const end = at + length;
  const before = text[at - 1] ?? " ";
  const after = text[end] ?? " ";
  const isLeft = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
  const isRight = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
  // An underscore within a word is part of a name.
  const mayOpen = run === "_" ? isLeft && (!isRight || PUNCTUATION.test(before)) : isLeft;
  const mayClose = run === "_" ? isRight && (!isLeft || PUNCTUATION.test(after)) : isRight;
  if (run === "~" && length !== 2) return { part: text.slice(at, end), end };
  return { part: { run, count: length, mayOpen, mayClose }, end };
}

/** Pairs delimiters, after CommonMark's process: each closer takes the nearest opener of its kind. */
function emphasise(parts) {
  for (let closer = 0; closer < parts.length; closer += 1) {
    const closing = parts[closer];
    if (!closing.mayClose) continue;
    let opener = -1;
    for (let at = closer - 1, looked = 0; at >= 0 && looked < MAX_LOOK_BACK; at -= 1) {
      const part = parts[at];
      if (part.run === undefined) continue;
      looked += 1;
      if (part.run === closing.run && part.mayOpen && part.count > 0 && !isOdd(part, closing)) {
        opener = at;
        break;
      }
    }
    if (opener < 0) continue;
    const opening = parts[opener];
    const used = Math.min(opening.count, closing.count) >= 2 ? 2 : 1;
    const tag = closing.run === "~" ? "del" : used === 2 ? "strong" : "em";
    const children = merge(parts.slice(opener + 1, closer));
    opening.count -= used;
    closing.count -= used;
    parts.splice(opener + 1, closer - opener - 1, { tag, attributes: {}, children });
    closer = opener + 1 + (closing.count > 0 ? 0 : 1); // the closer may close another one
  }
  return parts;
}

/** CommonMark's rule of three: `*a**b*` is not cut in the middle. */
function isOdd(opening, closing) {
  if (!opening.mayClose && !closing.mayOpen) return false;
  return (opening.count + closing.count) % 3 === 0 && (opening.count % 3 !== 0 || closing.count % 3 !== 0);
}

/** Delimiters that were not used become text, and texts next to each other one. */
function merge(parts) {
  const merged = [];
  for (const part of parts) {
    const next = part.run === undefined ? part : part.run.repeat(part.count);
    if (next === "") continue;
    if (typeof next === "string" && typeof merged.at(-1) === "string") merged[merged.length - 1] += next;
    else merged.push(next);
  }
  return merged;
}

function anchor(address, children) {
  return { tag: "a", attributes: { href: address, rel: "noopener noreferrer", target: "_blank" }, children };
}

/** A link cannot hold another one. */
function withoutAnchors(part) {
  return part.tag === "a" ? part.children : [part];
}

function isSafe(address) {
  return /^(https?:\/\/|mailto:)[^\s]+$/i.test(address);
}

function stickyMatch(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function runLength(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function count(text, character) {
  return text.split(character).length - 1;
}
