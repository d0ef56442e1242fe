/** The dialog in which a reader chooses where the tools of a conversation come from. */

import { byId, make } from "../page/dom.js";
import { words } from "../words/words.js";

export class ToolPicker {
  #button = byId("chat-tools");
  #changed;
  #conversation = null;
  #dialog = byId("running-tools");
  #list = byId("tool-sources");
  #tools;

  /** @param {import("./conversation_tools.js").ConversationTools} tools @param {(conversation: object) => void} changed */
  constructor(tools, changed) {
    this.#tools = tools;
    this.#changed = changed;
    this.#button.disabled = true; // until there is a conversation
    this.#button.addEventListener("click", () => this.#open());
    this.#dialog.querySelector("[data-close]").addEventListener("click", () => this.#dialog.close());
    byId("tools-ask-again").addEventListener("click", () => {
      this.#conversation.allowedTools = [];
      this.#showAllowed();
      changed(this.#conversation);
      this.#dialog.querySelector("[data-close]").focus();
    });
  }

  /** The conversation that is shown is another one. */
  show(conversation) {
    this.#conversation = conversation;
    this.#button.disabled = false;
    const { length } = conversation.toolSources;
    this.#button.textContent = length === 0 ? words.tools.open : words.tools.openCount(length);
  }

  async #open() {
    const sources = await this.#tools.sources();
    this.#list.replaceChildren(...sources.map(({ name }) => this.#item(name)));
    byId("tool-sources-none").hidden = sources.length > 1;
    this.#showAllowed();
    this.#dialog.showModal();
  }

  #item(name) {
    const item = make("li");
    const label = make("label");
    const box = make("input");
    box.type = "checkbox";
    box.value = name;
    box.checked = this.#conversation.toolSources.includes(name);
    box.addEventListener("change", () => this.#choose(name, box.checked));
    const isOwn = name === "page";
    label.append(box, make("span", "", isOwn ? words.tools.page : name), make("span", "note", isOwn ? words.tools.pageNote : words.tools.server));
    item.append(label);
    return item;
  }

  #choose(name, isChosen) {
    const conversation = this.#conversation;
    conversation.toolSources = conversation.toolSources.filter((other) => other !== name);
    if (isChosen) conversation.toolSources.push(name);
    this.show(conversation);
    this.#changed(conversation);
  }

  #showAllowed() {
    const { allowedTools } = this.#conversation;
    byId("tools-allowed").hidden = allowedTools.length === 0;
    byId("tools-allowed-names").textContent = words.tools.allowed(allowedTools.join(", "));
  }
}
