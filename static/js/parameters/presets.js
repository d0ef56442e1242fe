/** Sets of parameters by name: some that everybody has, and the reader's own. */

const KEY = "eagre.presets";

/** A parameter that is null, or is not in `extra`, is as the model recommends. */
export const BUILT_IN = {
  "As the model recommends": { temperature: null, topP: null, extra: {} },
  Precise: { temperature: 0.2, topP: 0.9, extra: {} },
  Inventive: { temperature: 1.1, topP: 1, extra: { min_p: 0.05 } },
  Greedy: { temperature: 0, topP: 1, extra: {} },
};

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
    return [...Object.keys(BUILT_IN), ...Object.keys(this.#own).filter((name) => !(name in BUILT_IN)).sort()];
  }

  isOwn(name) {
    return Object.hasOwn(this.#own, name);
  }

  /** The settings of a preset; they are checked by whoever takes them over. */
  get(name) {
    if (Object.hasOwn(BUILT_IN, name)) return BUILT_IN[name];
    return this.isOwn(name) ? this.#own[name] : null;
  }

  save(name, { temperature, topP, extra }) {
    if (Object.hasOwn(BUILT_IN, name)) throw new Error(`${name} is a preset that everybody has; take another name.`);
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
