import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import de from "../../../../static/js/words/de.js";
import en from "../../../../static/js/words/en.js";
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
