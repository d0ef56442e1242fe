/** The calls of an answer as cards, with a field for what each tool gives back. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";

export class ToolCards {
  element = make("div", "calls");
  #node;
  #deps;
  #cards = []; // {arguments, field}
  #send = null;

  /** @param {object} node @param {{results: () => object[], send: (results: {id: string, content: string}[]) => void}} deps */
  constructor(node, deps) {
    this.#node = node;
    this.#deps = deps;
  }

  /** Shows what the calls are by now. */
  update() {
    this.#node.toolCalls.forEach((call, index) => {
      if (this.#cards[index] === undefined) this.#cards.push(this.#makeCard(call));
      const { name, body } = this.#cards[index];
      name.textContent = call.name || "…";
      body.textContent = this.#node.finish === null ? call.arguments : pretty(call.arguments);
    });
  }

  /** The answer is whole: what the tools give back can be told. */
  finish() {
    this.update();
    const given = this.#deps.results();
    for (const [index, call] of this.#node.toolCalls.entries()) {
      const { field, label } = this.#cards[index];
      const result = given.find(({ toolCallId }) => toolCallId === call.id);
      field.hidden = label.hidden = given.length > 0;
      if (result !== undefined) field.value = result.content;
    }
    if (given.length > 0 || this.#send !== null) return;
    this.#send = make("button", "primary", this.#cards.length > 1 ? words.chat.sendResults : words.chat.sendResult);
    this.#send.addEventListener("click", () => {
      const results = this.#node.toolCalls.map(({ id }, index) => ({ id, content: this.#cards[index].field.value }));
      this.#deps.send(results);
      for (const { field, label } of this.#cards) field.hidden = label.hidden = true;
      this.#send.remove();
    });
    this.element.append(this.#send);
  }

  #makeCard() {
    const card = make("section", "call");
    card.setAttribute("aria-label", words.chat.toolCall);
    const head = make("p", "call-head");
    const name = make("strong");
    head.append(`${words.chat.calls} `, name);
    const body = make("pre");
    body.tabIndex = 0;
    const label = make("label", "note", words.chat.toolResult);
    const field = make("textarea");
    field.rows = 2;
    field.id = `result-${this.#node.id}-${this.#cards.length}`;
    label.htmlFor = field.id;
    label.hidden = field.hidden = true;
    card.append(head, body, label, field);
    this.element.append(card);
    return { name, body, field, label };
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // cut off, or no JSON
  }
}
