/** The choice of presets, and the form that saves the settings as one more. */

import { announce, byId } from "../page/dom.js";

const words = {
  title: "Presets…",
  chosen: (name) => `Preset ${name}`,
  saved: (name) => `Preset ${name} is saved.`,
};

export class PresetPicker {
  #presets;

  /**
   * @param {import("./presets.js").Presets} presets
   * @param {{settings: () => object, apply: (values: object) => void}} deps `apply` takes over the settings of a preset
   */
  constructor(presets, { settings, apply }) {
    this.#presets = presets;
    byId("preset").addEventListener("change", ({ target }) => {
      const values = presets.get(target.value);
      byId("preset-delete").hidden = !presets.isOwn(target.value);
      if (values === null) return;
      apply(values);
      announce(words.chosen(target.value));
    });
    byId("preset-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save(byId("preset-name"), settings());
    });
    byId("preset-name").addEventListener("input", ({ target }) => target.setCustomValidity(""));
    byId("preset-delete").addEventListener("click", () => {
      presets.remove(byId("preset").value);
      this.#show();
    });
    this.#show();
  }

  #save(field, settings) {
    const name = field.value.trim();
    if (name === "") return;
    try {
      this.#presets.save(name, settings);
    } catch (error) {
      announce(error.message);
      field.setCustomValidity(error.message);
      field.reportValidity();
      return;
    }
    field.value = "";
    byId("preset-save").open = false;
    this.#show(name);
    announce(words.saved(name));
  }

  #show(selected = "") {
    byId("preset").replaceChildren(new Option(words.title, ""), ...this.#presets.names.map((name) => new Option(name, name)));
    byId("preset").value = selected;
    byId("preset-delete").hidden = !this.#presets.isOwn(selected);
  }
}
