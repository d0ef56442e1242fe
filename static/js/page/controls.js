/** The settings as the reader sees them: form controls bound to one settings object. */

import { byId } from "./dom.js";
import { normalise } from "./settings.js";

const NUMBERS = { temperature: "temperature", "top-p": "topP", "max-tokens": "maxTokens" };

export class Controls {
  settings;
  #onChange;

  /** @param {object} settings @param {(settings: object) => void} onChange */
  constructor(settings, onChange) {
    this.settings = settings;
    this.#onChange = onChange;
    this.#show();
    byId("settings").addEventListener("input", () => this.#read());
    // While a number is being typed it may be out of range; on leaving the field the valid one shows.
    byId("settings").addEventListener("change", () => this.#show());
    byId("system").addEventListener("input", () => this.#read());
  }

  /** Changes settings that have no control of their own here. */
  change(changes) {
    this.settings = normalise({ ...this.settings, ...changes });
    this.#onChange(this.settings);
  }

  /** Changes settings that have controls here, which show it. */
  replace(changes) {
    this.change(changes);
    this.#show();
  }

  /** Changes the system prompt, which each conversation has of its own. */
  setSystem(system) {
    this.change({ system });
    byId("system").value = system;
  }

  /** Takes over what a link has of a request's parameters. */
  restore({ temperature, top_p: topP, max_tokens: maxTokens, seed }) {
    const given = Object.entries({ temperature, topP, maxTokens, seed }).filter(([, value]) => typeof value === "number");
    this.change(Object.fromEntries(given));
    this.#show();
  }

  /** The model's length, as the largest sensible answer. */
  limitTokens(maxModelLen) {
    byId("max-tokens").max = String(maxModelLen);
  }

  #read() {
    const changes = {
      transport: document.querySelector("input[name=transport]:checked").value,
      seed: numberIn("seed"),
      system: byId("system").value,
    };
    for (const [id, name] of Object.entries(NUMBERS)) {
      const value = numberIn(id);
      if (value !== null) changes[name] = value;
    }
    this.change(changes);
    this.#showOutputs();
  }

  #show() {
    const { settings } = this;
    for (const radio of document.querySelectorAll("input[name=transport]")) {
      radio.checked = radio.value === settings.transport;
    }
    for (const [id, name] of Object.entries(NUMBERS)) byId(id).value = String(settings[name]);
    byId("seed").value = settings.seed === null ? "" : String(settings.seed);
    byId("system").value = settings.system;
    this.#showOutputs();
  }

  #showOutputs() {
    byId("transport-note").hidden = this.settings.transport !== "responses";
    byId("temperature-value").textContent = this.settings.temperature.toFixed(2);
    byId("top-p-value").textContent = this.settings.topP.toFixed(2);
  }
}

function numberIn(id) {
  const { value } = byId(id);
  return value === "" || Number.isNaN(Number(value)) ? null : Number(value);
}
