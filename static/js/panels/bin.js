/** The conversations that were deleted lately, in a dialog: each can be had back. A part that is loaded when it is opened. */

import { ClickGuard } from "../page/click_guard.js";
import { make } from "../page/dom.js";
import { momentOf } from "../store/days.js";
import { BIN } from "../store/library.js";
import { words } from "../words/words.js";

class Bin {
  #library;
  #onChange;
  #guard = new ClickGuard();
  #dialog = make("dialog", "sheet bin");
  #list = make("ul", "plain");
  #said = make("p", "note");
  #empty = make("button", "small");
  #isSure = false; // the reader has asked once to delete all

  constructor(library, onChange) {
    this.#library = library;
    this.#onChange = onChange;
    const { sidebar, common } = words;
    const title = make("h2", "", sidebar.bin);
    title.id = "bin-title";
    this.#dialog.setAttribute("aria-labelledby", title.id);
    const close = make("button", "quiet", common.done);
    close.addEventListener("click", () => this.#dialog.close());
    const head = make("div", "drawer-head");
    head.append(title, close);
    this.#said.setAttribute("role", "status");
    this.#empty.addEventListener("click", (event) => this.#askOrEmpty(event));
    this.#dialog.append(head, make("p", "note", sidebar.binNote(BIN.days, BIN.most, BIN.megabytes)), this.#list, this.#said, this.#empty);
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close(); // beside it
    });
    this.#dialog.addEventListener("close", () => this.#dialog.remove());
  }

  async open() {
    await this.#show();
    document.body.append(this.#dialog);
    this.#dialog.showModal();
  }

  async #show() {
    const summaries = await this.#library.deleted();
    this.#list.replaceChildren(...summaries.map((summary) => this.#entry(summary)));
    this.#list.hidden = this.#empty.hidden = summaries.length === 0;
    this.#isSure = false;
    this.#empty.textContent = words.sidebar.emptyBin;
    if (summaries.length === 0 && this.#said.textContent === "") this.#said.textContent = words.sidebar.binIsEmpty;
  }

  #entry({ id, title, deleted, numMessages }) {
    const { sidebar } = words;
    const entry = make("li");
    const about = make("p");
    about.append(make("span", "name", title), make("span", "note", `${sidebar.deletedOn(momentOf(deleted))} · ${sidebar.messages(numMessages)}`));
    entry.append(
      about,
      this.#button(sidebar.restore, title, () => this.#library.recover(id), sidebar.restored(title)),
      this.#button(sidebar.forget, title, () => this.#library.forget(id), sidebar.forgotten(title)),
    );
    return entry;
  }

  #button(label, title, run, said) {
    const button = make("button", "small", label);
    button.setAttribute("aria-label", `${label}: ${title}`);
    button.addEventListener("click", (event) => {
      if (!this.#guard.isStray(event)) this.#change(run, said);
    });
    return button;
  }

  #askOrEmpty(event) {
    if (this.#guard.isStray(event)) return;
    if (this.#isSure) {
      this.#change(async () => {
        for (const { id } of await this.#library.deleted()) await this.#library.forget(id);
      }, words.sidebar.binIsEmpty);
      return;
    }
    this.#guard.during(() => {
      this.#isSure = true;
      this.#empty.textContent = words.sidebar.emptyBinSurely;
    });
  }

  /** Changes what there is, and moves on: the focus to the next entry, or to the button that closes. */
  async #change(run, said) {
    const at = [...this.#list.children].findIndex((entry) => entry.contains(document.activeElement));
    await this.#guard.during(async () => {
      await run();
      this.#said.textContent = said;
      await this.#show();
      this.#onChange();
    });
    const next = this.#list.children[Math.min(Math.max(at, 0), this.#list.childElementCount - 1)];
    (next ?? this.#dialog).querySelector("button").focus();
  }
}

/** Opens the list. @param {import("../store/library.js").Library} library @param {() => void} onChange hears of each change */
export function showBin(library, onChange) {
  return new Bin(library, onChange).open();
}
