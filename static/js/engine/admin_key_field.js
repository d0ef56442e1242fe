/** The field of the administrator's key: it is tried when it is entered, and one that the server refuses is not taken. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";

export class AdminKeyField {
  #admin;
  #error = make("p", "invalid");
  #field;
  #onTaken;
  #text; // what is being tried, or was tried last

  /**
   * @param {HTMLInputElement} field has an id
   * @param {HTMLElement} above has the words on a key that was refused below it
   * @param {import("./admin.js").Admin} admin
   * @param {() => void} onTaken the key is another one
   */
  constructor(field, above, admin, onTaken) {
    this.#field = field;
    this.#admin = admin;
    this.#onTaken = onTaken;
    this.#error.id = `${field.id}-error`;
    this.#error.setAttribute("role", "alert");
    field.setAttribute("aria-describedby", this.#error.id);
    above.after(this.#error);
    field.addEventListener("change", () => this.#try(field.value.trim()));
    this.show();
    if (field.value !== "") this.#try(field.value); // of an earlier view; the server may have another one now
  }

  /** Shows the key that counts; it may have been given elsewhere. */
  show() {
    const { value } = this.#admin.key;
    if (value === "" && this.#error.textContent !== "") return; // what was refused stays to be mended
    this.#field.value = value;
    this.#tell("");
  }

  async #try(text) {
    this.#text = text;
    const before = this.#admin.key.value;
    const problem = await this.#admin.takeKey(text);
    if (text !== this.#text) return; // another one was entered meanwhile
    if (this.#admin.key.value !== before) this.#onTaken();
    this.#tell(problem);
  }

  #tell(text) {
    this.#error.textContent = text;
    this.#field.setAttribute("aria-invalid", String(text !== ""));
  }
}
