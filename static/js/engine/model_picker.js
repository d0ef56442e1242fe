/**
 * The list behind the model's name in the header: which model answers, the state of each and what it takes, and what may
 * be done with it. With the administrator's key, models are also put to sleep and fetched here.
 */

import { byId, make } from "../page/dom.js";
import { words } from "../words/words.js";
import { Admin } from "./admin.js";
import { AdminKeyField } from "./admin_key_field.js";
import { ModelFetcher } from "./model_fetcher.js";
import { ModelList } from "./model_list.js";

export class ModelPicker {
  #dialog = byId("models-dialog");
  #field = make("input");
  #keyField;
  #lists;
  #message = make("p", "note");

  /**
   * @param {{fetch: typeof fetch, adminKey: import("../transport/api_key.js").ApiKey, chosen: () => string|undefined,
   *   choose: (model: string) => void, onState: () => void, onKey: () => void}} deps `onState` hears that a model has
   *   another state, and `onKey` that the administrator's key is another one
   */
  constructor({ fetch, adminKey, chosen, choose, onState, onKey }) {
    const admin = new Admin(adminKey);
    const tell = (text, isTrouble = false) => this.#tell(text, isTrouble);
    const models = new ModelList({ fetch, admin, tell, onChange: onState }, {
      chosen,
      choose: (model) => {
        choose(model);
        this.#dialog.close();
      },
    });
    this.#lists = [models, new ModelFetcher({ admin, tell, onServe: (model) => models.load(model) }, "picker")];
    this.#message.setAttribute("role", "status");
    byId("models-picker").append(models.element, this.#makeKey(admin, onKey), this.#lists[1].element, this.#message);
    this.#dialog.querySelector("[data-close]").addEventListener("click", () => this.#dialog.close());
    this.#dialog.querySelector("a").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close(); // beside the list
    });
    this.#dialog.addEventListener("close", () => this.#follow(false));
  }

  open() {
    this.#tell("", false);
    this.#keyField.show(); // it may have been given on the operator's page
    this.#follow(true);
    this.#dialog.showModal();
  }

  #follow(isShown) {
    for (const list of this.#lists) list.isShown = isShown;
  }

  #makeKey(admin, onKey) {
    const part = make("details", "admin-key");
    const label = make("label", "", words.engine.adminKey);
    Object.assign(this.#field, { id: "picker-key", type: "password", autocomplete: "off", spellcheck: false });
    label.htmlFor = this.#field.id;
    part.append(make("summary", "", words.engine.operator), label, this.#field);
    this.#keyField = new AdminKeyField(this.#field, this.#field, admin, () => {
      for (const list of this.#lists) list.follow();
      onKey();
    });
    return part;
  }

  #tell(text, isTrouble) {
    this.#message.textContent = text;
    this.#message.classList.toggle("invalid", isTrouble);
  }
}
