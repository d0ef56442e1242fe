/** Light or dark: as the system has it, or as the reader chooses. */

const KEY = "eagre.theme";
const THEMES = ["system", "light", "dark"];
const system = globalThis.matchMedia?.("(prefers-color-scheme: dark)");
const changed = new EventTarget();
const resolved = new Map(); // name of a custom property -> its colour in this theme

export class Theme {
  #storage;
  #value = "system";

  /** @param {() => Storage} storage calling it may throw where it is blocked */
  constructor(storage) {
    this.#storage = storage;
    try {
      this.#show(storage().getItem(KEY));
    } catch {
      // Without a storage, the theme lasts as long as the page.
    }
    system.addEventListener("change", tell);
  }

  get value() {
    return this.#value;
  }

  set value(name) {
    this.#show(name);
    try {
      this.#storage().setItem(KEY, this.#value);
    } catch {
      // As above.
    }
    tell();
  }

  #show(name) {
    this.#value = THEMES.includes(name) ? name : "system";
    document.documentElement.dataset.theme = this.#value;
  }
}

/** Calls back when the colours of the page have changed. */
export function onTheme(callback) {
  changed.addEventListener("change", callback);
}

/** The colour of a custom property as a canvas takes it, in the theme that is shown. */
export function colourOf(name) {
  if (!resolved.has(name)) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    resolved.set(name, getComputedStyle(probe).color);
    probe.remove();
  }
  return resolved.get(name);
}

function tell() {
  resolved.clear();
  changed.dispatchEvent(new Event("change"));
}
