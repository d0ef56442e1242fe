/**
 * The words of the page in the reader's language. Every visible string is in a catalogue: English in `en.js`, another
 * language in a file of the same shape. A module reads `words.chat.send` when it shows it, not when it is loaded; a word
 * with a number or a name in it is a function, `words.chat.messages(3)`. The document names its words by attributes, see
 * `fillIn`.
 */

import en from "./en.js";

const OTHERS = { de: () => import("./de.js") };

export const LANGUAGES = { en: "English", de: "Deutsch" };
export const words = merged(en, {});

/** The language to load: the chosen one, or the first that the browser prefers and that there is. */
export function languageOf(chosen, preferred = globalThis.navigator?.languages ?? []) {
  if (Object.hasOwn(LANGUAGES, chosen)) return chosen;
  return preferred.map((tag) => tag.slice(0, 2)).find((tag) => Object.hasOwn(LANGUAGES, tag)) ?? "en";
}

/** Makes `words` those of a language. What its catalogue lacks stays English. */
export async function loadWords(language) {
  const other = Object.hasOwn(OTHERS, language) ? (await OTHERS[language]()).default : {};
  Object.assign(words, merged(en, other));
}

/**
 * Writes words into the elements that name them: `data-words="chat.send"` for the text, and `data-words-label`,
 * `data-words-placeholder` and `data-words-title` for the attributes.
 */
export function fillIn(root) {
  for (const element of root.querySelectorAll("[data-words]")) element.textContent = wordAt(element.dataset.words);
  for (const [key, attribute] of [["label", "aria-label"], ["placeholder", "placeholder"], ["title", "title"]]) {
    for (const element of root.querySelectorAll(`[data-words-${key}]`)) {
      element.setAttribute(attribute, wordAt(element.getAttribute(`data-words-${key}`)));
    }
  }
}

function wordAt(path) {
  const word = path.split(".").reduce((part, name) => part?.[name], words);
  if (typeof word !== "string") throw new Error(`the catalogue has no word ${path}`);
  return word;
}

/** A catalogue with the words of another one in place of its own. */
function merged(catalogue, other) {
  return Object.fromEntries(Object.entries(catalogue).map(([name, own]) => {
    const given = other[name] ?? own;
    return [name, typeof own === "object" ? merged(own, given) : given];
  }));
}
