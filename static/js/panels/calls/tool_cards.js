/**
 * The calls of an answer as cards. A call of a tool that the page can run waits for the reader's word; another one has a
 * field for what the tool gives back.
 */

import { make } from "../../page/dom.js";
import { words } from "../../words/words.js";

export class ToolCards {
  element = make("div", "calls");
  #node;
  #deps;
  #cards = []; // {name, body, field, label, choice, isOurs, isRunning, isRun}: whether the reader runs it here, or it runs by itself
  #send = null;

  /**
   * @param {object} node
   * @param {{results: () => object[], send: (results: {id: string, content: string}[]) => void,
   *   runner: (call: object) => {source: string, tool: string}|null, isAllowed: (call: object) => boolean,
   *   isRunning: (call: object) => boolean,
   *   allow: (call: object) => void, run: (call: object) => Promise<{text: string, isError: boolean}>}} deps
   */
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

  /** The answer is whole: its calls can be run, and what tools give back can be told. */
  finish() {
    this.update();
    const given = this.#deps.results();
    for (const [index, call] of this.#node.toolCalls.entries()) {
      const { field, label } = this.#cards[index];
      const result = given.find(({ toolCallId }) => toolCallId === call.id);
      field.hidden = label.hidden = given.length > 0;
      if (result !== undefined) field.value = result.content;
    }
    if (given.length > 0) {
      for (const { choice } of this.#cards) choice?.remove();
      this.#send?.remove();
      return;
    }
    if (this.#send === null) {
      this.#send = make("button", "primary", this.#cards.length > 1 ? words.chat.sendResults : words.chat.sendResult);
      this.#send.addEventListener("click", () => this.#sendAll());
      this.element.append(this.#send);
    }
    for (const [index, call] of this.#node.toolCalls.entries()) this.#showChoice(this.#cards[index], call);
  }

  /** A call that runs by itself says so; another one that the page can run is offered. */
  #showChoice(card, call) {
    if (card.isOurs || this.#deps.runner(call) === null) return;
    const isRunning = this.#deps.isRunning(call);
    if (card.choice !== null && isRunning === card.isRunning) return;
    card.choice?.remove();
    card.isRunning = isRunning;
    this.#send.className = "quiet"; // the other way to go on
    if (isRunning) card.label.before((card.choice = runningLine()));
    else this.#offer(card, call);
  }

  #sendAll() {
    const results = this.#node.toolCalls.map(({ id }, index) => ({ id, content: this.#cards[index].field.value }));
    this.#deps.send(results);
    for (const { field, label, choice } of this.#cards) {
      field.hidden = label.hidden = true;
      choice?.remove();
    }
    this.#send.remove();
  }

  /** Asks whether a call may run. */
  #offer(card, call) {
    card.choice = make("div", "actions");
    const run = make("button", "primary", words.tools.run);
    const always = make("button", "quiet", words.tools.always);
    run.addEventListener("click", () => this.#run(card, call));
    always.addEventListener("click", () => {
      this.#deps.allow(call);
      for (const [index, other] of this.#node.toolCalls.entries()) {
        if (other.name === call.name && this.#cards[index].choice?.isConnected) this.#run(this.#cards[index], other);
      }
    });
    card.choice.append(run, always, make("span", "note", words.tools.from(this.#deps.runner(call).source)));
    card.label.before(card.choice);
    if (this.#deps.isAllowed(call) && this.#node.toolCalls.length > 1) this.#run(card, call); // the others are asked for
  }

  /** Runs a call; the results go to the model when the last one is there, unless one was written by hand. */
  async #run(card, call) {
    const line = runningLine();
    card.choice.replaceWith(line);
    card.choice = line;
    card.isOurs = true;
    const { text, isError } = await this.#deps.run(call).catch((error) => ({ text: error.message, isError: true }));
    line.textContent = isError ? words.tools.failed : "";
    card.field.value = text;
    card.isRun = true;
    if (this.#send.isConnected && this.#cards.every(({ isRun }) => isRun)) this.#sendAll();
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
    return { name, body, field, label, choice: null, isOurs: false, isRunning: false, isRun: false };
  }
}

function runningLine() {
  const line = make("p", "note", words.tools.running);
  line.setAttribute("role", "status");
  return line;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // cut off, or no JSON
  }
}
