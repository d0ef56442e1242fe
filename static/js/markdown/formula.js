/**
 * Formulas in a text: `\(…\)`, `\[…\]`, `$…$` and `$$…$$`. A formula is a part like any other whose child is its source,
 * with delimiters, and which has `formula: {tex, isDisplay}` for what draws it. One that has not ended is plain text as
 * it was written, so that nothing in it is taken for emphasis while it streams.
 */

const CLOSING = { "\\(": "\\)", "\\[": "\\]", "$$": "$$", "$": "$" };
const BLOCK = /^\s*(\\\[|\$\$)/;
const MAX_LENGTH = 10_000; // characters of one formula
const MAX_DOLLARS = 1000; // characters between two single dollars
const WORD = /[\p{L}\p{N}]/u;
const OF_MATHEMATICS = /[\\^_=+*/<>{}|]|^[^\s]{1,12}$/; // what an amount of money followed by words has none of

/** A formula as a part of the document. */
export function formula(source, tex, isDisplay) {
  return { tag: "span", attributes: { class: isDisplay ? "formula display" : "formula" }, children: [source], formula: { tex, isDisplay } };
}

/** The formula that begins at `at`: `{part, end}`, or null where none does. */
export function inlineFormulaAt(text, at) {
  const opening = openingAt(text, at);
  const begin = at + opening.length;
  const end = closingOf(opening, text, begin);
  if (opening === "$") return end < 0 || !isFormula(text, at, end) ? null : made(text, at, begin, end, opening);
  if (end >= 0 && text.slice(begin, end).trim() === "") return { part: text.slice(at, end + opening.length), end: end + opening.length };
  if (end >= 0) return made(text, at, begin, end, opening);
  if (opening === "$$" && at > 0 && text[at - 1] !== "\n") return { part: "$$", end: begin };
  return { part: text.slice(at), end: text.length };
}

/**
 * The formula that begins a line and may have several: `{source, tex, rest, end}`, where `rest` is what follows it on
 * its last line and `end` the line behind it, or null. It ends at an empty line at the latest; `tex` is null where it has
 * no end.
 *
 * @param {string[]} lines
 */
export function formulaBlockAt(lines, at) {
  const match = BLOCK.exec(lines[at]);
  if (match === null) return null;
  const [head, opening] = match;
  const parts = [];
  let length = 0;
  for (let end = at; ; end += 1) {
    const isOver = end >= lines.length || (end > at && lines[end].trim() === "") || length > MAX_LENGTH;
    if (isOver) return { source: opening + parts.join("\n"), tex: null, rest: "", end };
    const line = end === at ? lines[at].slice(head.length) : lines[end];
    const closed = closingOf(opening, line, 0);
    parts.push(closed < 0 ? line : line.slice(0, closed));
    length += line.length;
    if (closed < 0) continue;
    const tex = parts.join("\n");
    const source = opening + tex + CLOSING[opening];
    return { source, tex: tex.trim() === "" ? null : tex, rest: line.slice(closed + opening.length).trim(), end: end + 1 };
  }
}

/** Whether a line begins with a formula that stands alone, which ends a paragraph before it. */
export function beginsFormula(line) {
  return BLOCK.test(line);
}

function openingAt(text, at) {
  const two = text.slice(at, at + 2);
  return two in CLOSING ? two : "$";
}

/** Where the closing delimiter is, from `begin` on; -1 for nowhere. */
function closingOf(opening, text, begin) {
  const closing = CLOSING[opening];
  const limit = Math.min(text.length, begin + (opening === "$" ? MAX_DOLLARS : MAX_LENGTH));
  for (let at = begin; at < limit; at += 1) {
    if (text.startsWith(closing, at)) return at;
    if (text[at] === "\\") at += 1; // a command, or a delimiter that is part of the formula
  }
  return -1;
}

/** Whether two single dollars hold a formula, and are not the signs of prices or of variables of a shell. */
function isFormula(text, at, end) {
  const inner = text.slice(at + 1, end);
  if (/^\s|\s$|\n\s*\n/.test(inner) || WORD.test(text[at - 1] ?? "") || WORD.test(text[end + 1] ?? "")) return false;
  return !/^\d/.test(inner) || OF_MATHEMATICS.test(inner);
}

function made(text, at, begin, end, opening) {
  const behind = end + CLOSING[opening].length;
  const isDisplay = opening === "\\[" || opening === "$$";
  return { part: formula(text.slice(at, behind), text.slice(begin, end), isDisplay), end: behind };
}
