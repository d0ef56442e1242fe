/** What the keys of each name have used, for an administrator; hidden where there is none, or no key. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";
import { titledTable } from "./titled_table.js";

const INTERVAL = 5000; // milliseconds

const FIELDS = ["num_model_requests", "num_refused_requests", "input_tokens", "input_cached_tokens", "output_tokens", "num_streams"];

export class KeyUsage {
  element = make("section");
  #admin;
  #body = make("tbody");
  #isShown = false;
  #timer = null;

  /** @param {import("./admin.js").Admin} admin */
  constructor(admin) {
    this.#admin = admin;
    this.element.hidden = true;
    const columns = Object.values(words.usage.columns).map((word, at) => ({ word, className: at === 0 ? "" : "number" }));
    this.element.append(...titledTable("keys", words.usage.title, columns, this.#body));
    this.#body.parentElement.tabIndex = 0; // on a phone it is scrolled sideways
  }

  set isShown(isShown) {
    this.#isShown = isShown;
    this.follow();
  }

  /** Asks now, and again while it is shown. */
  follow() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (this.#isShown && this.#admin.key.value !== "") this.#ask();
    else this.element.hidden = true;
  }

  async #ask() {
    const timer = (this.#timer = setTimeout(() => this.#ask(), INTERVAL));
    try {
      const { data } = await this.#admin.read("/admin/usage");
      if (timer === this.#timer) this.#show(data);
    } catch (error) {
      if (timer !== this.#timer) return;
      this.element.hidden = true;
      if (error.status >= 400) clearTimeout(timer); // it stays so until the key, or the server, is another
    }
  }

  #show(accounts) {
    this.element.hidden = accounts.length === 0;
    this.#body.replaceChildren(...accounts.map((account) => {
      const row = make("tr");
      const name = make("th", "", account.name);
      name.scope = "row";
      row.append(name, ...FIELDS.map((field) => make("td", "number", String(account[field]))));
      return row;
    }));
  }
}
