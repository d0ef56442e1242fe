/** The dialog in which a reader chooses where the tools of a conversation come from. */

import { byId, make } from "../../page/dom.js";
import { words } from "../../words/words.js";

export class ToolPicker {
  #button = byId("chat-tools");
  #conversation = null;
  #deps;
  #dialog = byId("running-tools");
  #list = byId("tool-sources");
  #tools;

  /**
   * @param {import("./conversation_tools.js").ConversationTools} tools
   * @param {{changed: (conversation: object) => void, lost: () => void, attach: (files: File[]) => void,
   *   insert: (messages: {role: string, text: string}[], files: File[]) => void}} deps `lost` hears that a part of the page
   *   cannot be loaded
   */
  constructor(tools, deps) {
    this.#tools = tools;
    this.#deps = deps;
    this.#button.disabled = true; // until there is a conversation
    this.#button.addEventListener("click", () => this.#open());
    this.#dialog.querySelector("[data-close]").addEventListener("click", () => this.#dialog.close());
    byId("tools-ask-again").addEventListener("click", () => {
      this.#conversation.allowedTools = [];
      this.#showAllowed();
      deps.changed(this.#conversation);
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
    this.#list.replaceChildren(...sources.map((source) => this.#item(source)));
    byId("tool-sources-none").hidden = sources.length > 1;
    this.#showAllowed();
    this.#dialog.showModal();
  }

  #item(source) {
    const { name } = source;
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
    if (!isOwn) item.append(this.#offersOf(source));
    return item;
  }

  /** The prompts and resources of a server, which is asked for them when somebody looks. */
  #offersOf(source) {
    const part = make("details");
    const list = make("div");
    part.append(make("summary", "note", words.tools.offers), list);
    const close = (use) => (...given) => {
      this.#dialog.close();
      use(...given);
    };
    const deps = { insert: close(this.#deps.insert), attach: close(this.#deps.attach) };
    part.addEventListener("toggle", () => {
      if (part.open) import("./server_offers.js").then(({ showOffers }) => showOffers(list, source, deps), this.#deps.lost);
    });
    return part;
  }

  #choose(name, isChosen) {
    const conversation = this.#conversation;
    conversation.toolSources = conversation.toolSources.filter((other) => other !== name);
    if (isChosen) conversation.toolSources.push(name);
    this.show(conversation);
    this.#deps.changed(conversation);
  }

  #showAllowed() {
    const { allowedTools } = this.#conversation;
    byId("tools-allowed").hidden = allowedTools.length === 0;
    byId("tools-allowed-names").textContent = words.tools.allowed(allowedTools.join(", "));
  }
}
