/**
 * Text to blocks: headings, paragraphs, lists, quotes, tables, code, rules. Of CommonMark and GitHub's tables it reads
 * what models write; HTML is text, and an indented line is no code.
 *
 * A block is `{tag, attributes, children}` with the line that it begins at as `start`. What follows a block never
 * changes the blocks before it, which is why a stream has to look at its last block alone (see `stream.js`).
 */

import { beginsFormula, formula, formulaBlockAt } from "./formula.js";
import { parseInline } from "./inline.js";
import { readJson } from "./json.js";
import { words } from "../words/words.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?! )|( +)|$)/;
const DELIMITER_CELL = /^:?-+:?$/;
const DRAWN = ["html", "htm", "xhtml", "svg"]; // languages of code that can be shown as it looks
const MAX_DEPTH = 12; // of lists and quotes within each other; deeper ones are text

/** @param {string[]} lines @returns {object[]} */
export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { block, end } = blockAt(lines, at, depth);
    blocks.push({ ...block, start: at });
    at = end;
  }
  return blocks;
}

export function element(tag, children, attributes = {}) {
  return { tag, attributes, children };
}

function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence !== null) return codeAt(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading !== null) {
    const text = (heading[2] ?? "").trimEnd().replace(/(?:^|[ \t])#{1,20}$/, "");
    return { block: element(`h${heading[1].length}`, parseInline(text.trim())), end: at + 1 };
  }
  if (RULE.test(line)) return { block: element("hr", []), end: at + 1 };
  if (depth < MAX_DEPTH) {
    if (QUOTE.test(line)) return quoteAt(lines, at, depth);
    if (ITEM.test(line)) return listAt(lines, at, depth);
  }
  if (beginsFormula(line)) return formulaAt(lines, at);
  if (isTable(lines, at)) return tableAt(lines, at);
  return paragraphAt(lines, at, depth);
}

function formulaAt(lines, at) {
  const { source, tex, rest, end } = formulaBlockAt(lines, at);
  const parts = [tex === null ? source : formula(source, tex, true), ...parseInline(rest)];
  return { block: element("p", parts), end };
}

function codeAt(lines, at, [, marks, info]) {
  const indent = indentOf(lines[at]);
  const closing = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const code = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, indentOf(line))) + "\n").join("");
  const language = info.trim().split(/\s+/)[0] ?? "";
  return { block: codeBlock(language, code), end: Math.min(end + 1, lines.length) };
}

function codeBlock(language, code) {
  const preview = element("button", [words.chat.preview], { type: "button", class: "preview" });
  const head = element("div", [
    element("span", language === "" ? [] : [language]),
    ...(DRAWN.includes(language.toLowerCase()) ? [preview] : []),
    element("button", [words.common.copy], { type: "button", class: "copy" }),
  ], { class: "code-head" });
  const text = { ...element("code", code === "" ? [] : [code]), language: language.toLowerCase() };
  const body = element("pre", [text], { tabindex: "0" }); // long lines scroll, also by keyboard
  return element("div", [head, body], { class: "code" });
}

/** A text that is JSON from its first line on, as a block of code: `{block, end}`, or null where it is none. */
export function jsonBlockAt(lines) {
  const start = lines.findIndex((line) => !isBlank(line));
  if (start < 0 || !/^\s*[{[]/.test(lines[start])) return null;
  const text = lines.slice(start).join("\n");
  const found = readJson(text);
  if (found === null) return null;
  const lineEnd = text.indexOf("\n", found.length);
  const end = lineEnd < 0 ? text.length : lineEnd;
  if (text.slice(found.length, end).trim() !== "") return null;
  const shown = text.slice(0, found.length).trim();
  const code = /\n[ \t]+\S/.test(shown) ? shown : found.formatted; // without any indentation it would be hard to read
  const numLines = text.slice(0, end).split("\n").length;
  return { block: { ...codeBlock("json", `${code}\n`), start }, end: start + numLines };
}

function quoteAt(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return { block: element("blockquote", parseBlocks(inner, depth + 1)), end };
}

function listAt(lines, at, depth) {
  const isOrdered = /\d/.test(ITEM.exec(lines[at])[2]);
  const first = isOrdered ? Number.parseInt(ITEM.exec(lines[at])[2], 10) : 1;
  const items = [];
  let end = at;
  for (let next = at; next < lines.length; ) {
    const match = ITEM.exec(lines[next]);
    if (match === null || /\d/.test(match[2]) !== isOrdered || RULE.test(lines[next])) break;
    end = itemEnd(lines, next, match);
    items.push(itemOf(lines.slice(next, end), match, depth));
    next = end;
    while (next < lines.length && isBlank(lines[next])) next += 1;
  }
  const attributes = first === 1 ? {} : { start: String(first) };
  const digits = isOrdered ? String(first + items.length - 1).length : 1;
  if (digits > 1) attributes.class = `digits-${digits}`; // so that there is room for the longest number
  return { block: element(isOrdered ? "ol" : "ul", items, attributes), end };
}

/** The line behind an item: what is indented belongs to it, and text that goes on without a blank line. */
function itemEnd(lines, at, match) {
  const needed = Math.min(widthOf(match), match[1].length + 2); // models indent by two, whatever the marker's width
  let end = at + 1;
  for (let next = end; next < lines.length; next += 1) {
    const line = lines[next];
    if (isBlank(line)) continue;
    const isLazy = next === end && !ITEM.test(line) && !startsBlock(lines, next) && !isBlank(lines[next - 1]);
    if (indentOf(line) < needed && !isLazy) break;
    end = next + 1;
  }
  return end;
}

function itemOf(lines, match, depth) {
  const width = widthOf(match);
  const inner = lines.map((line, index) => line.slice(index === 0 ? width : Math.min(indentOf(line), width)));
  const box = /^\[([ xX])\] /.exec(inner[0]);
  if (box !== null) inner[0] = `${box[1] === " " ? "☐" : "☑"} ${inner[0].slice(box[0].length)}`;
  const blocks = parseBlocks(inner, depth + 1);
  // Without a blank line between them, the parts of an item stand close: its text needs no paragraph.
  const isTight = !inner.some((line, index) => isBlank(line) && index > 0 && index < inner.length - 1);
  const children = isTight ? blocks.flatMap((block) => (block.tag === "p" ? block.children : [block])) : blocks;
  return element("li", children);
}

function widthOf([, indent, marker, space]) {
  return indent.length + marker.length + (space?.length ?? 1);
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !lines[at + 1].includes("-")) return false;
  const delimiters = cellsOf(lines[at + 1]);
  return delimiters.every((cell) => DELIMITER_CELL.test(cell)) && delimiters.length === cellsOf(lines[at]).length;
}

function tableAt(lines, at) {
  const aligned = cellsOf(lines[at + 1]).map((cell) => {
    if (!cell.endsWith(":")) return {};
    return { class: cell.startsWith(":") ? "centre" : "right" };
  });
  const row = (line, tag) => {
    const cells = cellsOf(line);
    return element("tr", aligned.map((attributes, index) => element(tag, parseInline(cells[index] ?? ""), attributes)));
  };
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && !startsBlock(lines, end)) end += 1;
  const parts = [element("thead", [row(lines[at], "th")])];
  if (end > at + 2) parts.push(element("tbody", lines.slice(at + 2, end).map((line) => row(line, "td"))));
  return { block: element("div", [element("table", parts)], { class: "table", tabindex: "0" }), end };
}

/** The cells of a line; a bar behind a backslash, or within code, does not end a cell. */
function cellsOf(line) {
  const cells = [""];
  let isCode = false;
  const text = line.trim();
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (character === "\\" && text[at + 1] === "|") {
      cells[cells.length - 1] += "|";
      at += 1;
    } else if (character === "|" && !isCode) {
      cells.push("");
    } else {
      if (character === "`") isCode = !isCode && text.includes("`", at + 1);
      cells[cells.length - 1] += character;
    }
  }
  if (text.startsWith("|")) cells.shift();
  if (cells.length > 1 && cells.at(-1).trim() === "") cells.pop();
  return cells.map((cell) => cell.trim());
}

function paragraphAt(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !(depth < MAX_DEPTH && startsBlock(lines, end))) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim()).join("\n");
  return { block: element("p", parseInline(text)), end };
}

/** Whether a line ends the paragraph before it. A number does only where it is 1: a year may begin a line. */
function startsBlock(lines, at) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || beginsFormula(line) || isTable(lines, at)) return true;
  const item = ITEM.exec(line);
  return item !== null && line.length > item[0].trimEnd().length && (!/\d/.test(item[2]) || /^1[.)]/.test(item[2]));
}

function isBlank(line) {
  return line.trim() === "";
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}
