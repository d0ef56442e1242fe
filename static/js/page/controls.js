/** The settings as the reader sees them: form controls bound to one settings object. */

import { byId } from "./dom.js";
import { normalise } from "./settings.js";

export class Controls {
  settings;
  #onChange;

  /** @param {object} settings @param {(settings: object) => void} onChange */
  constructor(settings, onChange) {
    this.settings = settings;
    this.#onChange = onChange;
    this.#show();
    for (const radio of document.querySelectorAll("input[name=transport]")) {
      radio.addEventListener("input", () => this.#read());
    }
    byId("system").addEventListener("input", () => this.#read());
  }

  /** Changes settings that have no control of their own here. */
  change(changes) {
    this.settings = normalise({ ...this.settings, ...changes });
    this.#onChange(this.settings);
  }

  /** Changes the system prompt, which each conversation has of its own. */
  setSystem(system) {
    this.change({ system });
    byId("system").value = system;
  }

  #read() {
    this.change({
      transport: document.querySelector("input[name=transport]:checked").value,
      system: byId("system").value,
    });
    this.#showNote();
  }

  #show() {
    const { settings } = this;
    for (const radio of document.querySelectorAll("input[name=transport]")) {
      radio.checked = radio.value === settings.transport;
    }
    byId("system").value = settings.system;
    this.#showNote();
  }

  #showNote() {
    byId("transport-note").hidden = this.settings.transport !== "responses";
  }
}
