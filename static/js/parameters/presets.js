/** Sets of parameters by name: some that everybody has, and the reader's own. */

import { words } from "../words/words.js";

const KEY = "eagre.presets";

/**
 * The presets that everybody has, by their names in the reader's language. A parameter that is null, or is not in
 * `extra`, is as the model recommends.
 */
function builtIn() {
  const { recommended, precise, inventive, greedy } = words.presets;
  return {
    [recommended]: { temperature: null, topP: null, extra: {} },
    [precise]: { temperature: 0.2, topP: 0.9, extra: {} },
    [inventive]: { temperature: 1.1, topP: 1, extra: { min_p: 0.05 } },
    [greedy]: { temperature: 0, topP: 1, extra: {} },
  };
}

export class Presets {
  #storage;
  #own = {};

  /** @param {() => Storage} storage calling it may throw where it is blocked */
  constructor(storage) {
    this.#storage = storage;
    try {
      const stored = JSON.parse(storage().getItem(KEY));
      for (const [name, values] of Object.entries(Object(stored))) if (Object(values) === values) this.#own[name] = values;
    } catch {
      // No storage, or not our JSON: only the built-in ones are there.
    }
  }

  get names() {
    const known = builtIn();
    return [...Object.keys(known), ...Object.keys(this.#own).filter((name) => !Object.hasOwn(known, name)).sort()];
  }

  isOwn(name) {
    return Object.hasOwn(this.#own, name);
  }

  /** The settings of a preset; they are checked by whoever takes them over. */
  get(name) {
    const known = builtIn();
    if (Object.hasOwn(known, name)) return known[name];
    return this.isOwn(name) ? this.#own[name] : null;
  }

  save(name, { temperature, topP, extra }) {
    if (Object.hasOwn(builtIn(), name)) throw new Error(words.presets.taken(name));
    this.#own[name] = { temperature, topP, extra };
    this.#keep();
  }

  remove(name) {
    delete this.#own[name];
    this.#keep();
  }

  #keep() {
    try {
      this.#storage().setItem(KEY, JSON.stringify(this.#own));
    } catch {
      // They last as long as the page.
    }
  }
}
