import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

const PAGE = readFileSync(new URL("../../../../static/index.html", import.meta.url), "utf8");
const BODY = PAGE.slice(PAGE.indexOf("<body>")).replace(/<noscript>.*?<\/noscript>/s, "");
const NAMES = ["Eagre", "SSE", "WebSocket", "Responses"]; // the same in every language

test("what the document shows comes from the catalogue", () => {
  const shown = [...BODY.matchAll(/>([^<]*\p{L}[^<]*)</gu)].map(([, text]) => text.trim());
  assert.deepEqual(shown.filter((text) => !NAMES.includes(text)), []);
  const attributes = [...BODY.matchAll(/ ((?:aria-label|placeholder|title|alt)="[^"]*\p{L}[^"]*")/gu)].map(([, text]) => text);
  assert.deepEqual(attributes, []);
});

// Sentences of the program's own texts, which are no words of the page: for developers, for the model, and code.
const OTHERS = [
  "the page has no element #", "the library could not be loaded", "The answer cannot be kept: ", "The conversation cannot be kept: ",
  "the database is in use", "the tree has a node … already", "the tree has no node …", "the catalogue has no word …",
  "You are a helpful assistant.", "that the model cannot read]", "system-ui, sans-serif", "[contenteditable]", "Open WebUI",
];
const LEFT_OUT = /^js\/(words\/|markdown\/languages|views\/snippets|tools\/(builtin|calculator|tool_box)\.js)/;

/** The texts of a script, with … for what is filled in. */
function textsOf(script) {
  const code = script.replace(/^\s*(\/?\*|\/\/).*$/gm, "").replace(/\s\/\/ .*$/gm, "").replace(/\/(?:[^/\\\n[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\/[a-z]*(?=[,.;)])/g, "0");
  return [...code.matchAll(/"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`/g)].map(([, plain, filled]) => plain ?? filled.replace(/\$\{[^}]*\}/g, "…"));
}

test("no sentence that the page shows is outside the catalogue", () => {
  const folder = new URL("../../../../static/", import.meta.url);
  const scripts = readdirSync(folder, { recursive: true }).filter((name) => /^js\/.*\.js$/.test(name) && !LEFT_OUT.test(name));
  const isSentence = (text) => /\p{L}{2,}[^"=;<>]* \p{L}{2,}[^"=;<>]* \p{L}{2,}/u.test(text) || /\p{L}{3,} ?[?!]$|\p{L}{2,} \p{L}+\.$|^\p{Lu}\p{Ll}{2,}( \p{L}{2,})+$/u.test(text);
  const found = scripts.flatMap((name) => textsOf(readFileSync(new URL(name, folder), "utf8")).filter(isSentence).map((text) => `${name}: ${text}`));
  assert.deepEqual(found.filter((text) => !OTHERS.some((other) => text.includes(other))), []);
});
