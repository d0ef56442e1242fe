/**
 * The models that can be had, for who has the administrator's key: the built-in ones with what they are good for, and
 * those of the Hub that are on the server's machine. They are fetched, used and deleted here.
 */

import { make } from "../page/dom.js";
import { bytes } from "../transport/server_state.js";
import { words } from "../words/words.js";
import { titledTable } from "./titled_table.js";

const INTERVAL = 1000; // milliseconds, while a model is fetched
const PART = /\((\d+) of (\d+)\)$/; // at the end of a stage, of a model that comes in several parts

export class ModelFetcher {
  element = make("section", "fetcher");
  #admin;
  #body = make("tbody");
  #field = make("input");
  #deleting = null; // the model whose deletion waits for a second click
  #entries = [];
  #fetched = new Map(); // model -> {completed, total, stage} of what this page fetches
  #isShown = false;
  #onServe;
  #tell;
  #timer = null;

  /**
   * @param {{admin: import("./admin.js").Admin, tell: (text: string, isTrouble?: boolean) => void,
   *   onServe: (model: string) => void}} deps `onServe` hears of a model that is served from now on
   * @param {string} place the beginning of ids
   */
  constructor({ admin, tell, onServe }, place = "engine") {
    this.#admin = admin;
    this.#tell = tell;
    this.#onServe = onServe;
    const columns = [["model", ""], ["size", "number"], ["memory", "number wide-cell"], ["actions", "actions-column"]]
      .map(([name, className]) => ({ word: words.fetcher.columns[name], className }));
    this.element.append(...titledTable("available", words.fetcher.title, columns, this.#body, place), this.#makeForm(place));
    this.element.hidden = true;
  }

  set isShown(isShown) {
    this.#isShown = isShown;
    this.follow();
  }

  /** Asks now, and again while a model is fetched. */
  follow() {
    clearTimeout(this.#timer);
    this.element.hidden = this.#admin.key.value === "" || this.#entries.length === 0;
    if (this.#isShown && this.#admin.key.value !== "") this.#ask();
  }

  async #ask() {
    try {
      this.#entries = (await this.#admin.read("/admin/models")).data;
    } catch {
      this.#entries = []; // the key is none of an administrator, which the other lists say
    }
    this.#show();
    clearTimeout(this.#timer);
    const isFetching = this.#entries.some(({ pull }) => pull !== null);
    if (isFetching && this.#isShown) this.#timer = setTimeout(() => this.#ask(), INTERVAL);
  }

  #makeForm(place) {
    const form = make("form", "fetch-other chips");
    const label = make("label", "", words.fetcher.other);
    Object.assign(this.#field, { id: `${place}-fetch-name`, placeholder: "owner/name", autocomplete: "off", spellcheck: false, required: true });
    label.htmlFor = this.#field.id;
    const button = make("button", "", words.fetcher.calls.fetch);
    button.type = "submit";
    form.append(label, this.#field, button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#fetch(this.#field.value.trim());
    });
    return form;
  }

  #show() {
    this.element.hidden = this.#admin.key.value === "" || this.#entries.length === 0;
    const { model: focused, call } = (this.#body.contains(document.activeElement) ? document.activeElement : this.#body).dataset;
    const others = [...this.#fetched.keys()].filter((model) => this.#entries.every(({ id }) => id !== model));
    const entries = [...this.#entries, ...others.map((id) => ({ id, pull: null }))]; // of the Hub, on their way
    this.#body.replaceChildren(...entries.map((entry) => this.#row(entry)));
    const same = [...this.#body.querySelectorAll("button")].filter(({ dataset }) => dataset.model === focused);
    (same.find(({ dataset }) => dataset.call === call) ?? same[0])?.focus();
  }

  #row(entry) {
    const { id, size, memory_bytes: memory, license, summary } = entry;
    const row = make("tr");
    const name = make("th", "", id);
    name.scope = "row";
    const about = [words.fetcher.summaries[id] ?? summary, license].filter(Boolean).join(" · ");
    if (about !== "") name.append(make("span", "note", about));
    const actions = make("td", "chips actions-column");
    actions.append(...this.#actions(entry));
    row.append(name, make("td", "number", bytes(size)), make("td", "number wide-cell", bytes(memory)), actions);
    return row;
  }

  #actions(entry) {
    const { id, is_here: isHere, is_served: isServed, received } = entry;
    const pull = this.#fetched.get(id) ?? entry.pull;
    if (pull !== null) return progressOf(pull, id);
    if (isServed) return [make("span", "note", words.fetcher.served)];
    if (!isHere) return [this.#button(id, "fetch", words.fetcher.calls[received > 0 ? "resume" : "fetch"], () => this.#fetch(id))];
    if (this.#deleting !== id) {
      return [
        make("span", "note", words.fetcher.onDisk),
        this.#button(id, "use", words.fetcher.calls.use, () => this.#use(id)),
        this.#button(id, "delete", words.common.delete, () => this.#ponder(id)),
      ];
    }
    return [
      this.#button(id, "delete", words.fetcher.calls.delete, () => this.#delete(id)),
      this.#button(id, "keep", words.common.cancel, () => this.#ponder(null)),
    ];
  }

  #button(model, call, word, run) {
    const button = make("button", "", word);
    button.setAttribute("aria-label", words.models.forModel(word, model));
    Object.assign(button.dataset, { model, call });
    button.addEventListener("click", run);
    return button;
  }

  #ponder(model) {
    this.#deleting = model;
    this.#show();
  }

  /** Fetches a model; the server goes on with it when the page is closed. */
  async #fetch(model) {
    this.#tell(words.fetcher.fetching(model));
    this.#fetched.set(model, { stage: "", completed: 0, total: 0 });
    this.#show();
    try {
      await this.#admin.pull(model, (progress) => {
        this.#fetched.set(model, progress);
        this.#show();
      });
      this.#field.value = "";
      this.#tell(words.fetcher.fetched(model));
    } catch (error) {
      this.#tell(error.message, true);
    }
    this.#fetched.delete(model);
    this.follow();
  }

  async #use(model) {
    try {
      await this.#admin.call("models", { model });
      this.#onServe(model);
    } catch (error) {
      this.#tell(error.message, true);
    }
    this.follow();
  }

  async #delete(model) {
    this.#deleting = null;
    try {
      await this.#admin.remove(model);
      this.#tell(words.fetcher.deleted(model));
    } catch (error) {
      this.#tell(error.message, true);
    }
    this.follow();
  }
}

/** How far a model has come: a bar, and the bytes of the part that comes. */
function progressOf({ stage, completed, total }, model) {
  const bar = make("progress");
  bar.setAttribute("aria-label", words.fetcher.fetching(model));
  if (total > 0) Object.assign(bar, { max: total, value: completed });
  const [, part, parts] = PART.exec(stage) ?? [];
  const text = total > 0 ? words.fetcher.progress(bytes(completed), bytes(total), part, parts) : words.fetcher.waiting;
  return [bar, make("span", "note", text)];
}
