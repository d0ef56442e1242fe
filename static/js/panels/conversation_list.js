/** The drawer with all conversations: search, open, rename, delete, export, import. */

import { download } from "../page/clipboard.js";
import { announce, byId, make } from "../page/dom.js";

export class ConversationList {
  #drawer = byId("drawer");
  #list = byId("conversations");
  #search = byId("conversation-search");
  #note = byId("conversations-note");
  #library;
  #deps;

  /**
   * @param {Promise<import("../store/library.js").Library>} library
   * @param {{openId: () => string, open: (id: string) => void, create: () => void, removed: (id: string) => void,
   *   renamed: (id: string, title: string) => void}} deps
   */
  constructor(library, deps) {
    this.#library = library;
    this.#deps = deps;
    this.#search.addEventListener("input", () => this.#show());
    byId("drawer-close").addEventListener("click", () => this.#drawer.close());
    this.#drawer.addEventListener("click", (event) => {
      if (event.target === this.#drawer) this.#drawer.close(); // outside of it
    });
    byId("conversation-new").addEventListener("click", () => {
      this.#drawer.close();
      deps.create();
    });
    byId("export-all").addEventListener("click", async () => {
      const summaries = await (await this.#library).find();
      await this.#export(summaries.map(({ id }) => id), "conversations");
    });
    const chooser = byId("import-file");
    byId("import").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", async () => {
      const [file] = chooser.files;
      chooser.value = "";
      if (file !== undefined) await this.import(await file.text());
    });
  }

  async show() {
    this.#search.value = "";
    await this.#show();
    this.#drawer.showModal();
    this.#search.focus();
  }

  /** Adds the conversations of an exported file, and says how many, or what is wrong with it. */
  async import(text) {
    let words;
    try {
      const count = await (await this.#library).import(text);
      words = `${count} ${count === 1 ? "conversation" : "conversations"} added.`;
    } catch (error) {
      words = error.message;
    }
    await this.#show();
    this.#say(words);
  }

  async #export(ids, name) {
    download(`${name}.json`, await (await this.#library).export(ids));
  }

  async #show() {
    const summaries = await (await this.#library).find(this.#search.value);
    this.#list.replaceChildren(...summaries.map((summary) => this.#makeEntry(summary)));
    const isSearch = this.#search.value.trim() !== "";
    this.#say(summaries.length > 0 ? "" : isSearch ? "Nothing found." : "No conversations yet. They are kept in this browser alone.");
  }

  #say(words) {
    this.#note.textContent = words;
    if (words !== "") announce(words);
  }

  #makeEntry(summary) {
    const entry = make("li", "entry");
    const open = make("button", "title");
    open.append(make("span", "name", summary.title), make("span", "when", describe(summary)));
    if (summary.id === this.#deps.openId()) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => {
      this.#drawer.close();
      this.#deps.open(summary.id);
    });
    const buttons = make("span", "tools");
    const add = (label, run) => {
      const button = make("button", "small", label);
      button.setAttribute("aria-label", `${label} ${summary.title}`);
      button.addEventListener("click", run);
      buttons.append(button);
    };
    add("Rename", () => this.#rename(entry, summary));
    add("Export", () => this.#export([summary.id], summary.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)));
    add("Delete", (event) => this.#remove(event.currentTarget, summary));
    entry.append(open, buttons);
    return entry;
  }

  #rename(entry, summary) {
    const form = make("form", "rename");
    const field = make("input");
    field.value = summary.title;
    field.setAttribute("aria-label", "New name");
    form.append(field, make("button", "small", "Keep"));
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const title = field.value.trim();
      if (title !== "") {
        await (await this.#library).rename(summary.id, title);
        this.#deps.renamed(summary.id, title);
      }
      await this.#show();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      this.#show();
    });
    entry.replaceChildren(form);
    field.select();
  }

  /** The first press asks, the second one does it. */
  async #remove(button, summary) {
    if (button.dataset.sure !== "yes") {
      button.dataset.sure = "yes";
      button.textContent = "Delete?";
      button.setAttribute("aria-label", `Really delete ${summary.title}`);
      return;
    }
    await (await this.#library).remove(summary.id);
    this.#deps.removed(summary.id);
    await this.#show();
    announce("The conversation is deleted.");
  }
}

function describe({ updated, numMessages }) {
  const date = new Date(updated);
  const isToday = date.toDateString() === new Date().toDateString();
  const when = isToday
    ? date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
    : date.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
  return `${when} · ${numMessages} ${numMessages === 1 ? "message" : "messages"}`;
}
