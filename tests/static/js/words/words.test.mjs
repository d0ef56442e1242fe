import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { describeWait } from "../../../../static/js/answer/waiting.js";
import { limitError } from "../../../../static/js/parameters/limits.js";
import { Presets } from "../../../../static/js/parameters/presets.js";
import { readTools } from "../../../../static/js/parameters/structure.js";
import { describeLatency } from "../../../../static/js/views/latency.js";
import de from "../../../../static/js/words/de.js";
import en from "../../../../static/js/words/en.js";
import { isFigure, tellFigures } from "../../../../static/js/words/figures.js";
import { languageOf, loadWords, words } from "../../../../static/js/words/words.js";

const STATIC = new URL("../../../../static/", import.meta.url);

/** The names of a catalogue's words, with their kinds and how many values they take. */
function namesOf(catalogue, prefix = "") {
  return Object.entries(catalogue).flatMap(([name, word]) =>
    typeof word === "object" ? namesOf(word, `${prefix}${name}.`) : [`${prefix}${name} ${typeof word} ${word.length * (typeof word === "function")}`]);
}

test("every language has a word for everything that English has", () => {
  assert.deepEqual(namesOf(de), namesOf(en));
});

test("the chosen language, or the first that the browser prefers and that there is", () => {
  assert.equal(languageOf("de", ["en"]), "de");
  assert.equal(languageOf("", ["fr", "de-AT", "en"]), "de");
  assert.equal(languageOf("tlh", ["fr"]), "en");
});

test("words change with the language", async () => {
  await loadWords("de");
  assert.equal(words.common.cancel, "Abbrechen");
  await loadWords("en");
  assert.equal(words.common.cancel, "Cancel");
});

test("a module that was loaded before its words shows those of the language", async () => {
  await loadWords("de");
  assert.equal(describeWait(null, 2), "Wartet auf das erste Token, 2 s");
  assert.equal(limitError("top k", "12345.5", { isWhole: true }), "top k ist 12345.5; es muss eine ganze Zahl sein.");
  assert.equal(limitError("n", "0", { minimum: 1, maximum: 16384 }), "n ist 0; erlaubt: von 1 bis 16.384.");
  assert.equal(readTools("[1]").error, "Werkzeug 1 ist kein Objekt.");
  assert.deepEqual(describeLatency({ first: 12, p50: null, p99: null, now: null, overall: 3 }), ["erstes Token 12 ms", "3.0 Tokens/s insgesamt"]);
  const presets = new Presets(() => ({ getItem: () => null }));
  assert.deepEqual([presets.names[0], presets.get("Genau").temperature], ["Wie das Modell es empfiehlt", 0.2]);
  await loadWords("en");
});

test("figures are kept as numbers, and told in the language in which they are read", async () => {
  const kept = [["first", 477.4], ["rate", 78.2], ["tokens", 1], ["end", "stop"], ["end", "something new"], ["stoppedAt", 9], ["edited"]];
  const read = JSON.parse(JSON.stringify(kept)).filter(isFigure);
  const english = ["first token 477 ms", "78 tokens/s", "1 token", "complete", "something new", "stopped at 9 tokens", "edited"];
  assert.deepEqual(tellFigures(read), english);
  await loadWords("de");
  assert.deepEqual(tellFigures(read).slice(0, 4), ["erstes Token 477 ms", "78 Tokens/s", "1 Token", "vollständig"]);
  await loadWords("en");
  assert.deepEqual(tellFigures(["erstes Token 5 ms"]), ["erstes Token 5 ms"], "of a page that kept words");
});

test("what is no figure is none, whatever a file says", () => {
  for (const value of [null, 7, [], ["first"], ["first", "1"], ["end", 3], ["toString", 1], ["constructor"], { 0: "edited" }]) {
    assert.equal(isFigure(value), false, JSON.stringify(value));
  }
});

test("every word that the page or a module names is in the catalogue", () => {
  const known = new Set(namesOf(en).map((name) => name.split(" ")[0]));
  const scripts = readdirSync(STATIC, { recursive: true }).filter((name) => /^js\/(?!words\/).*\.js$/.test(name));
  const named = [...readFileSync(new URL("index.html", STATIC), "utf8").matchAll(/data-words(?:-\w+)?="([^"]+)"/g)].map(([, name]) => name);
  for (const name of scripts) {
    const found = readFileSync(new URL(name, STATIC), "utf8").matchAll(/\bwords\.((?:[a-z]\w*)\.(?:[a-z]\w*))/gi);
    named.push(...[...found].map(([, word]) => word));
  }
  assert.deepEqual(named.filter((name) => !known.has(name) && ![...known].some((word) => word.startsWith(`${name}.`))), []);
});
