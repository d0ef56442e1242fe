/** The tab of tokens: one prompt, one to four columns of answers, and four ways to look at them. */

import { copyText } from "../page/clipboard.js";
import { announce, byId } from "../page/dom.js";
import { NUM_ALTERNATIVES, answerOfNode, probability } from "./answer.js";
import { branchTask, givenTokens } from "./branch.js";
import { Column } from "./column.js";
import { firstDifference } from "./compare.js";
import { RawEvents } from "./raw_events.js";
import { fromFragment, toFragment } from "./setup_link.js";
import { drawStrip, sharedAxis } from "./strip_chart.js";
import { TokenCard, percent } from "./token_card.js";

export class Workbench {
  #deps;
  #columns = [];
  #active = null; // the column whose token is looked at
  #seed = null; // of the answers that are shown
  #isKept = false; // the reader has clicked on a token: pointing at others does not change it
  #card = new TokenCard(byId("token-card"), (at, alternative) => this.#branch(at, alternative));
  #raw = new RawEvents(byId("raw"));
  #frame = null;

  /**
   * @param {{serverOf: (origin: string) => import("../transport/server.js").Server, peers: string[],
   *   parameters: (isChat: boolean) => object, model: () => object|null, models: () => string[], transport: () => string,
   *   canGenerate: (isChat: boolean) => boolean, hasSeed: () => boolean,
   *   restore: (parameters: object, isChat: boolean) => void}} deps `hasSeed` tells whether the reader has set one
   */
  constructor(deps) {
    this.#deps = deps;
    byId("tokens-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    byId("tokens-stop").addEventListener("click", () => this.stop());
    byId("tokens-again").addEventListener("click", () => this.#playAgain());
    byId("tokens-link").addEventListener("click", () => this.#copyLink());
    byId("tokens-columns").addEventListener("change", () => this.#setColumns(Number(byId("tokens-columns").value)));
    byId("tokens-colouring").addEventListener("change", () => {
      for (const column of this.#columns) column.flow.colouring = byId("tokens-colouring").value;
    });
    for (const button of document.querySelectorAll("#tokens-views button")) {
      button.addEventListener("click", () => this.#look(button.dataset.view));
    }
    new ResizeObserver(() => this.#changed()).observe(byId("columns"));
    this.#setColumns(1);
    this.#look("tokens");
  }

  /** Takes over the setup that the address has brought. @returns {boolean} whether there is one, which this tab then shows */
  takeSetup() {
    const setup = fromFragment(location.hash);
    if (setup !== null) this.#restore(setup);
    return setup !== null;
  }

  offerModels(models) {
    for (const column of this.#columns) column.offerModels(models);
  }

  focus() {
    byId("tokens-prompt").focus({ preventScroll: true });
  }

  stop() {
    for (const column of this.#columns) column.stop();
  }

  /** Shows an answer of the chat. */
  openNode(node) {
    this.#setColumns(1);
    this.#columns[0].open(answerOfNode(node));
    this.#showButtons();
  }

  async run() {
    const prompt = byId("tokens-prompt").value;
    const isChat = byId("tokens-kind").value === "chat";
    if (prompt === "" || !this.#deps.canGenerate(isChat) || !this.#columns.every((column) => column.check())) return;
    const asked = isChat
      ? { messages: [{ role: "user", content: prompt }], logprobs: true, top_logprobs: NUM_ALTERNATIVES }
      : { prompt, logprobs: NUM_ALTERNATIVES };
    const task = { ...this.#deps.parameters(isChat), ...asked };
    this.#seed = task.seed;
    this.#isKept = false;
    this.#card.show(null, null);
    for (const column of this.#columns) column.clear();
    // Answers that are compared differ from each other, unless the reader has set a seed for all of them.
    const seedOf = (at) => (this.#deps.hasSeed() ? task.seed : (task.seed + at) % 2 ** 32);
    const running = this.#columns.map((column, at) => column.run(column.taskOf({ ...task, seed: seedOf(at) })));
    this.#showButtons();
    await Promise.all(running);
    this.#showButtons();
    announce("The answers are complete.");
  }

  async #branch(at, alternative) {
    const column = this.#active;
    const { answer } = column;
    const maxModelLen = this.#deps.model()?.max_model_len ?? answer.promptTokens.length + 1024;
    const task = branchTask(answer, at, alternative.id, { numAlternatives: NUM_ALTERNATIVES, maxModelLen });
    const running = column.run(task, givenTokens(answer, at, alternative), `${at + 1}: ${JSON.stringify(alternative.text)}`, answer.server);
    this.#isKept = false;
    this.#showButtons();
    const branch = await running;
    this.#showButtons();
    announce(branch.error ?? `The branch has ${branch.tokens.length} tokens.`);
  }

  /** The same request once more: the same tokens come again. */
  async #playAgain() {
    const column = this.#active ?? this.#columns[0];
    const { answer } = column;
    if (answer === null || column.isRunning) return;
    const running = column.run(answer.task, answer.tokens.slice(0, answer.numGiven), "again", answer.server);
    this.#showButtons();
    const again = await running;
    const at = firstDifference([answer.tokens, again.tokens]);
    const isSame = at === null && answer.tokens.length === again.tokens.length;
    again.note = isSame ? `the same ${again.tokens.length} tokens again` : `differs from token ${(at ?? Math.min(answer.tokens.length, again.tokens.length)) + 1} on`;
    column.show(column.answers.indexOf(again));
    this.#showButtons();
    announce(again.note);
  }

  #setColumns(count) {
    byId("tokens-columns").value = String(count);
    while (this.#columns.length > count) {
      const column = this.#columns.pop();
      column.stop();
      column.element.remove();
    }
    while (this.#columns.length < count) {
      const column = new Column(this.#columns.length + 1, {
        serverOf: this.#deps.serverOf,
        peers: this.#deps.peers,
        models: () => this.#deps.models(),
        transport: this.#deps.transport,
        colouring: byId("tokens-colouring").value,
        onSelect: (chosen, at, isKept) => this.#select(chosen, at, isKept),
        onChange: () => this.#changed(),
      });
      this.#columns.push(column);
      byId("columns").append(column.element);
    }
    byId("columns").dataset.count = String(count);
    if (count === 1) this.#columns[0].reset(); // one alone has no fields of its own
    if (!this.#columns.includes(this.#active)) this.#active = null;
    this.#changed();
  }

  #select(column, at, isKept) {
    if (this.#isKept && !isKept) return;
    this.#isKept = isKept;
    this.#active = column;
    this.#card.show(column.answer, at);
  }

  #look(view) {
    byId("tokens").dataset.view = view;
    for (const button of document.querySelectorAll("#tokens-views button")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
    this.#changed();
  }

  #changed() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#showDifference();
      const { view } = byId("tokens").dataset;
      const answers = this.#columns.map(({ answer }) => answer).filter((answer) => answer !== null);
      if (view === "latency" && answers.length > 0) {
        const own = this.#columns.map(({ answer }) => answer?.tokens.slice(answer.numGiven) ?? []);
        const axis = sharedAxis(own.map((tokens) => ({ tokens })));
        this.#columns.forEach((column, at) => drawStrip(column.canvas, own[at], axis));
      }
      if (view === "raw") this.#raw.show((this.#active ?? this.#columns[0]).answer);
    });
  }

  #showDifference() {
    const answers = this.#columns.map(({ answer }) => answer);
    const isComparable = answers.length > 1 && answers.every((answer) => answer !== null);
    const at = isComparable ? firstDifference(answers.map(({ tokens }) => tokens)) : null;
    for (const column of this.#columns) column.flow.different = at;
    const line = byId("tokens-difference");
    line.hidden = !isComparable;
    if (!isComparable) return;
    line.textContent = at === null
      ? "The answers have the same tokens so far."
      : `They part at token ${at + 1}: ${answers.map(({ tokens }) => wordsOf(tokens[at])).join(" against ")}.`;
  }

  #showButtons() {
    const isRunning = this.#columns.some((column) => column.isRunning);
    byId("tokens-run").hidden = isRunning;
    byId("tokens-stop").hidden = !isRunning;
    byId("tokens-again").disabled = isRunning || this.#columns.every(({ answer }) => answer === null);
    const answer = this.#active?.answer;
    if (!isRunning && answer) this.#card.show(null, null);
  }

  async #copyLink() {
    const kind = byId("tokens-kind").value;
    const parameters = this.#deps.parameters(kind === "chat");
    const columns = this.#columns.map((column) => column.settings);
    // Whoever opens the link sees the answers that are shown, and not those of other seeds.
    if (!this.#deps.hasSeed()) {
      parameters.seed = this.#seed ?? parameters.seed;
      if (columns.length > 1) columns.forEach((settings, at) => (settings.seed ||= this.#columns[at].seed));
    }
    const setup = { prompt: byId("tokens-prompt").value, kind, parameters, columns };
    history.replaceState(null, "", toFragment(setup));
    await copyText(location.href, byId("tokens-link"));
    announce("The link is copied. The setup stands behind the # and is never sent to a server.");
  }

  #restore({ prompt, kind, columns, parameters }) {
    if (typeof prompt === "string") byId("tokens-prompt").value = prompt;
    if (kind === "chat" || kind === "text") byId("tokens-kind").value = kind;
    if (Array.isArray(columns) && columns.length >= 1 && columns.length <= 4) {
      this.#setColumns(columns.length);
      if (columns.length > 1) columns.forEach((settings, at) => (this.#columns[at].settings = Object(settings)));
    }
    if (parameters !== null && typeof parameters === "object") this.#deps.restore(parameters, kind === "chat");
  }
}

function wordsOf(token) {
  const share = token.logprob === null ? "" : ` (${percent(probability(token.logprob))})`;
  return `${JSON.stringify(token.text)}${share}`;
}
