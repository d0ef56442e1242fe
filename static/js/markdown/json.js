/** An answer that is JSON, as structured output is: where it ends, and its text with a line for each member. */

const BEGINS = /^\s*(?:\{\s*(?:["}]|$)|\[\s*(?:[{["\]]|$))/;
const TOKEN = /\s*(?:([{}[\],:])|("[^"\\]*(?:\\[^][^"\\]*)*\\?)("?)|([^\s{}[\],:"]+))/y;
const SCALAR = /^(?:-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)$/;
const SCALAR_PREFIX = /^(?:-?\d*\.?\d*(?:[eE][+-]?\d*)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?)$/;
const INDENT = "  ";
const MAX_DEPTH = 64;

/**
 * The JSON value that a text begins with, which may not be complete yet.
 *
 * @param {string} text
 * @returns {{length: number, isComplete: boolean, formatted: string}|null} null where it is none
 */
export function readJson(text) {
  if (!BEGINS.test(text.slice(0, 200))) return null;
  const open = []; // the brackets around what comes next
  let formatted = "";
  let expected = "value"; // or "key", "colon", "comma"
  let before = "";
  for (let at = 0; ; ) {
    TOKEN.lastIndex = at;
    const match = TOKEN.exec(text);
    if (match === null) return { length: text.length, isComplete: false, formatted };
    const [, mark, string, quote, word] = match;
    at = TOKEN.lastIndex;
    const isLast = at === text.length; // which may go on
    const closes = mark === "}" || mark === "]";
    if (closes) {
      if (open.pop() !== (mark === "}" ? "{" : "[") || expected === "colon" || before === "," || before === ":") return null;
    } else if (mark === "{" || mark === "[") {
      if (expected !== "value" || open.length >= MAX_DEPTH) return null;
    } else if (mark === ":") {
      if (expected !== "colon") return null;
    } else if (mark === ",") {
      if (expected !== "comma") return null;
    } else if (string !== undefined) {
      if ((expected !== "value" && expected !== "key") || (quote === "" && !isLast)) return null;
    } else if (expected !== "value" || !(SCALAR.test(word) || (isLast && SCALAR_PREFIX.test(word)))) {
      return null;
    }
    const opensLine = (before === "{" || before === "[") ? !closes : before === "," || (closes && before !== "");
    if (opensLine) formatted += `\n${INDENT.repeat(open.length)}`;
    formatted += mark === ":" ? ": " : (mark ?? (string === undefined ? word : string + quote));
    if (mark === "{" || mark === "[") open.push(mark);
    if (mark === "{") expected = "key";
    else if (mark === "[" || mark === ":") expected = "value";
    else if (mark === ",") expected = open.at(-1) === "{" ? "key" : "value";
    else expected = expected === "key" && !closes ? "colon" : "comma";
    if (open.length === 0) return { length: at, isComplete: true, formatted };
    before = mark ?? "scalar";
  }
}
