/** Columns of answers, the card of the token that is looked at, and three ways to look: what comparison and inspector share. */

import { announce, make } from "../page/dom.js";
import { words } from "../words/words.js";
import { NUM_ALTERNATIVES, probability } from "./answer.js";
import { branchTask, givenTokens } from "./branch.js";
import { Column } from "./column.js";
import { firstDifference } from "./compare.js";
import { RawEvents } from "./raw_events.js";
import { drawStrip, sharedAxis } from "./strip_chart.js";
import { TokenCard, percent } from "./token_card.js";

export class Bench {
  columns = [];
  #root;
  #deps;
  #list;
  #active = null; // the column whose token is looked at
  #at = null; // the place of that token
  #isKept = false; // the reader has clicked on a token: pointing at others does not change it
  #card;
  #raw;
  #frame = null;

  /**
   * @param {HTMLElement} root has `.views` with a button for each view, `.columns`, `.token-card` and `.raw`
   * @param {{serverOf: (origin: string) => import("../transport/server.js").Server, peers: string[], model: () => object|null,
   *   models: () => string[], transport: () => string, colouring: () => string, changed: () => void}} deps `changed` hears
   *   that an answer has begun or ended, or another one is shown
   */
  constructor(root, deps) {
    this.#root = root;
    this.#deps = deps;
    this.#list = root.querySelector(".columns");
    this.#card = new TokenCard(root.querySelector(".token-card"), (at, alternative) => this.#branch(at, alternative), () => this.release());
    this.#raw = new RawEvents(root.querySelector(".raw"));
    for (const button of root.querySelectorAll(".views button")) button.addEventListener("click", () => this.look(button.dataset.view));
    new ResizeObserver(() => this.#changed()).observe(this.#list);
  }

  get isRunning() {
    return this.columns.some((column) => column.isRunning);
  }

  set colouring(colouring) {
    for (const column of this.columns) column.flow.colouring = colouring;
  }

  stop() {
    for (const column of this.columns) column.stop();
  }

  offerModels(models) {
    for (const column of this.columns) column.offerModels(models);
  }

  setColumns(count) {
    while (this.columns.length > count) {
      const column = this.columns.pop();
      column.stop();
      column.element.remove();
    }
    while (this.columns.length < count) {
      const column = new Column(this.columns.length + 1, {
        serverOf: this.#deps.serverOf,
        peers: this.#deps.peers,
        models: () => this.#deps.models(),
        transport: this.#deps.transport,
        colouring: this.#deps.colouring(),
        onSelect: (chosen, at, isKept) => this.#select(chosen, at, isKept),
        onChange: () => this.#changed(),
      });
      this.columns.push(column);
      this.#list.append(column.element);
    }
    this.#list.dataset.count = String(count);
    if (count === 1) this.columns[0].reset(); // one alone has no fields of its own
    if (!this.columns.includes(this.#active)) this.#active = null;
    this.#changed();
  }

  /** No token is looked at. */
  release() {
    this.#at = null;
    this.#isKept = false;
    this.#card.show(null, null);
  }

  look(view) {
    this.#root.dataset.view = view;
    for (const button of this.#root.querySelectorAll(".views button")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
    this.#changed();
  }

  /** The same request once more: the same tokens come again. */
  async replay() {
    const column = this.#active ?? this.columns[0];
    const answer = column?.answer ?? null;
    if (answer === null || column.isRunning) return;
    this.release(); // the card was of the answer before
    const running = column.run(answer.task, answer.tokens.slice(0, answer.numGiven), words.tokens.again, answer.server);
    this.#deps.changed();
    const again = await running;
    const at = firstDifference([answer.tokens, again.tokens]);
    const isSame = at === null && answer.tokens.length === again.tokens.length;
    const from = (at ?? Math.min(answer.tokens.length, again.tokens.length)) + 1;
    again.note = isSame ? words.tokens.sameAgain(again.tokens.length) : words.tokens.differsFrom(from);
    column.tellNote();
    this.ended();
    announce(again.note);
  }

  /** An answer has ended: from now on, the token that is looked at can begin a branch. */
  ended() {
    this.#deps.changed();
    if (!this.isRunning && this.#at !== null) this.#card.show(this.#active?.answer ?? null, this.#at, this.#isKept);
  }

  async #branch(at, alternative) {
    const column = this.#active;
    const { answer } = column;
    const maxModelLen = this.#deps.model()?.max_model_len ?? answer.promptTokens.length + 1024;
    const task = branchTask(answer, at, alternative.id, { numAlternatives: NUM_ALTERNATIVES, maxModelLen });
    this.release();
    const running = column.run(task, givenTokens(answer, at, alternative), `${at + 1}: ${JSON.stringify(alternative.text)}`, answer.server);
    this.#deps.changed();
    const branch = await running;
    this.ended();
    announce(branch.error ?? words.tokens.branchEnded(branch.tokens.length));
  }

  #select(column, at, isKept) {
    if (at === null) { // another answer is shown in its place
      if (column === this.#active) this.release();
      return;
    }
    if (this.#isKept && !isKept) return;
    this.#isKept = isKept;
    this.#active = column;
    this.#at = at;
    this.#card.show(column.answer, at, isKept);
  }

  #changed() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#showDifference();
      const { view } = this.#root.dataset;
      const answers = this.columns.map(({ answer }) => answer).filter((answer) => answer !== null);
      if (view === "latency" && answers.length > 0) {
        const own = this.columns.map(({ answer }) => answer?.tokens.slice(answer.numGiven) ?? []);
        const axis = sharedAxis(own.map((tokens) => ({ tokens })));
        this.columns.forEach((column, at) => drawStrip(column.canvas, own[at], axis));
      }
      if (view === "raw") this.#raw.show((this.#active ?? this.columns[0])?.answer ?? null);
      this.#deps.changed();
    });
  }

  #showDifference() {
    const line = this.#root.querySelector(".difference");
    if (line === null) return;
    const answers = this.columns.map(({ answer }) => answer);
    const isComparable = answers.length > 1 && answers.every((answer) => answer !== null);
    const at = isComparable ? firstDifference(answers.map(({ tokens }) => tokens), answers.map(({ task }) => task.model)) : null;
    for (const column of this.columns) column.flow.different = at;
    line.hidden = !isComparable;
    if (!isComparable) return;
    const partsAt = (words_) => words_.join(` ${words.tokens.against} `);
    line.textContent = at === null ? words.tokens.noDifference : words.tokens.partAt(at + 1, partsAt(answers.map(({ tokens }) => wordsOf(tokens[at]))));
  }
}

/** A name and a value, as a row of a list of facts. */
export function fact(name, value) {
  const row = make("div");
  row.append(make("dt", "", name), make("dd", "", value));
  return row;
}

function wordsOf(token) {
  const share = token.logprob === null ? "" : ` (${percent(probability(token.logprob))})`;
  return `${JSON.stringify(token.text)}${share}`;
}
