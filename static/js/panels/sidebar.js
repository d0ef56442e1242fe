/** The list of conversations that stays at the side: search, open, rename, delete, export, import. */

import { ClickGuard } from "../page/click_guard.js";
import { download } from "../page/clipboard.js";
import { announce, byId, make } from "../page/dom.js";
import { addressOf } from "../page/route.js";
import { byDay, momentOf } from "../store/days.js";
import { suffixOf } from "../store/formats.js";
import { words } from "../words/words.js";

const SEARCH_DELAY = 120; // milliseconds

export class Sidebar {
  #list = byId("conversations");
  #search = byId("conversation-search");
  #note = byId("conversations-note");
  #library;
  #deps;
  #guard = new ClickGuard(); // the next conversation comes into the place of one that is deleted
  #timer = null;
  #showing = null;
  #isStale = false;

  /**
   * @param {Promise<import("../store/library.js").Library>} library
   * @param {{openId: () => string|undefined, isBusy: (id: string) => boolean, removed: (id: string) => void,
   *   load: (id: string) => Promise<object|null>, renamed: (id: string, title: string) => void,
   *   toast: import("../page/toast.js").Toast, drafts: import("../store/drafts.js").Drafts, opened: () => void}} deps
   */
  constructor(library, deps) {
    this.#library = library;
    this.#deps = deps;
    this.#search.addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.update(), SEARCH_DELAY);
    });
    this.#search.addEventListener("keydown", async (event) => {
      if (event.key !== "Enter" || event.isComposing || this.#search.value.trim() === "") return;
      clearTimeout(this.#timer);
      await this.update();
      this.#list.querySelector(".title")?.click();
    });
    byId("export-all").addEventListener("click", async () => {
      const summaries = await (await this.#library).find();
      await this.#export(summaries.map(({ id }) => id), "conversations");
    });
    byId("bin-open").addEventListener("click", () => this.showBin());
    library.then(async (kept) => {
      await kept.prune();
      await this.#showBinButton();
    });
    const chooser = byId("import-file");
    byId("import").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", async () => {
      const [file] = chooser.files;
      chooser.value = "";
      if (file !== undefined) await this.import(await file.text());
    });
  }

  focusSearch() {
    this.#search.focus();
    this.#search.select();
  }

  /** Ends a search, which would hide what begins now. */
  endSearch() {
    this.#search.value = "";
  }

  /** Shows the conversations as they are now; calls that come meanwhile are one. */
  update() {
    this.#isStale = true;
    this.#showing ??= this.#show().finally(() => (this.#showing = null));
    return this.#showing;
  }

  /** Shows what was deleted lately, and can be had back. */
  async showBin() {
    const part = await import("./bin.js").catch(() => null);
    if (part === null) {
      this.#deps.toast.show(words.engine.loadFailed);
      return;
    }
    this.#deps.toast.hide(); // what it offers to take back may be taken back here
    await part.showBin(await this.#library, () => {
      this.#showBinButton();
      this.update();
    });
  }

  async #showBinButton() {
    const { length } = await (await this.#library).deleted();
    byId("bin-open").textContent = words.sidebar.binOf(length);
    byId("bin-open").hidden = length === 0;
  }

  /** Adds the conversations of an exported file, and says how many, or what is wrong with it. */
  async import(text) {
    let said;
    try {
      said = words.sidebar.imported(await (await this.#library).import(text));
    } catch (error) {
      said = error.message;
    }
    await this.update();
    this.#say(said);
  }

  async #export(ids, name) {
    const format = byId("export-format").value;
    download(`${name}.${suffixOf(format)}`, await (await this.#library).export(ids, format));
  }

  async #show() {
    while (this.#isStale) {
      this.#isStale = false;
      const summaries = await (await this.#library).find(this.#search.value);
      if (this.#list.querySelector(".rename") !== null) continue; // a name is being typed
      const focused = this.#list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      this.#list.replaceChildren(...byDay(summaries).map((group) => this.#makeGroup(group)));
      if (focused !== null) this.#list.querySelector(`[href="${focused}"]`)?.focus();
      const isSearch = this.#search.value.trim() !== "";
      this.#say(summaries.length > 0 ? "" : isSearch ? words.sidebar.nothingFound : words.sidebar.empty);
    }
  }

  #say(text) {
    this.#note.textContent = text;
    if (text !== "" && document.activeElement === this.#search) announce(text);
  }

  #makeGroup({ title, summaries }) {
    const group = make("section", "group");
    const list = make("ul");
    group.setAttribute("aria-label", title);
    list.append(...summaries.map((summary) => this.#makeEntry(summary)));
    group.append(make("h2", "", title), list);
    return group;
  }

  #makeEntry(summary) {
    const entry = make("li", "entry");
    const open = make("a", "title");
    open.href = addressOf(summary.id);
    const state = this.#deps.isBusy(summary.id) ? "streaming" : (summary.state ?? "");
    if (state !== "") {
      const dot = make("span", `dot ${state}`);
      dot.setAttribute("role", "img");
      dot.setAttribute("aria-label", words.sidebar[state]);
      dot.title = words.sidebar[state];
      open.append(dot);
    }
    open.append(make("span", "name", summary.title));
    if (summary.kind === "completion") open.append(make("span", "kind", words.sidebar.completion));
    open.title = `${summary.title}\n${describe(summary)}`;
    if (summary.id === this.#deps.openId()) open.setAttribute("aria-current", "page");
    open.addEventListener("click", () => this.#deps.opened());
    const buttons = make("span", "tools");
    const add = (label, sign, run) => {
      const button = make("button", "small");
      button.append(sign);
      button.setAttribute("aria-label", `${label} ${summary.title}`);
      button.title = label;
      button.addEventListener("click", run);
      buttons.append(button);
    };
    add(words.sidebar.rename, "✎", () => this.#rename(entry, summary));
    add(words.sidebar.copy, copySign(), () => this.#copy(summary));
    add(words.sidebar.exportOne, "⤓", () => this.#export([summary.id], summary.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40)));
    add(words.common.delete, "×", (event) => {
      if (!this.#guard.isStray(event)) this.#guard.during(() => this.#remove(summary));
    });
    entry.append(open, buttons);
    return entry;
  }

  #rename(entry, summary) {
    const form = make("form", "rename");
    const field = make("input");
    field.value = summary.title;
    field.setAttribute("aria-label", words.sidebar.newName);
    const save = make("button", "small", words.common.save);
    save.type = "submit";
    form.append(field, save);
    const end = () => {
      form.remove();
      return this.update();
    };
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const title = field.value.trim();
      if (title !== "") {
        await (await this.#library).rename(summary.id, title);
        this.#deps.renamed(summary.id, title);
      }
      await end();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      end();
    });
    entry.replaceChildren(form);
    field.select();
  }

  async #copy({ id }) {
    const conversation = await this.#deps.load(id);
    if (conversation === null) return;
    const copy = await (await this.#library).copy(conversation);
    await this.update();
    location.hash = addressOf(copy.id);
  }

  /** Deletes at once, and offers to take it back. */
  async #remove(summary) {
    const library = await this.#library;
    await this.#deps.removed(summary.id);
    await library.remove(summary.id);
    const draft = this.#deps.drafts.get(summary.id);
    this.#deps.drafts.set(summary.id, null);
    await Promise.all([this.update(), this.#showBinButton()]);
    announce(words.sidebar.deleted(summary.title));
    this.#deps.toast.show(words.sidebar.deleted(summary.title), async () => {
      this.#deps.drafts.set(summary.id, draft);
      await library.recover(summary.id);
      await Promise.all([this.update(), this.#showBinButton()]);
      location.hash = addressOf(summary.id);
    });
  }
}

/** Two sheets: few fonts have a character for them. */
function copySign() {
  const [sign, path] = ["svg", "path"].map((name) => document.createElementNS("http://www.w3.org/2000/svg", name));
  sign.setAttribute("viewBox", "0 0 20 20");
  sign.setAttribute("aria-hidden", "true");
  path.setAttribute("d", "M7 7h9v9H7zM4 13V4h9");
  sign.append(path);
  return sign;
}

function describe({ updated, numMessages }) {
  return `${momentOf(updated)} · ${words.sidebar.messages(numMessages)}`;
}
