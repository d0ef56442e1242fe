/** The selected answer beside the conversation: who wrote it and how, its tokens, their timing, and what went over the wire. */

import { byId, make } from "../page/dom.js";
import { tellFigures } from "../words/figures.js";
import { words } from "../words/words.js";
import { answerOfNode } from "./answer.js";
import { Bench, fact } from "./bench.js";
import { keptBranch, saidBy } from "./branch.js";

export class Inspector {
  #root = byId("inspector");
  #bench;
  #branches = new WeakMap(); // node -> the answers that were shown of it, its replays and branches
  #deps;
  #last = null; // the last answer of the conversation
  #node = null; // the selected answer
  #shown = null; // {node, numEvents}: what is drawn of it, or of another one
  #onToggle;

  /**
   * @param {object} deps as of `Bench`, and `asked`, which makes the task that an answer of the conversation had, and `keep`,
   *   which makes a branch an answer of the conversation: `(node, kept) => void`
   * @param {(isOpen: boolean) => void} onToggle
   */
  constructor(deps, onToggle) {
    this.#deps = deps;
    this.#onToggle = onToggle;
    this.#bench = new Bench(this.#root, { ...deps, colouring: () => "probability", changed: () => this.#showButtons() });
    this.#bench.look("details");
    byId("inspector-close").addEventListener("click", () => onToggle(false));
    byId("inspector-replay").addEventListener("click", () => this.#bench.replay());
    byId("inspector-keep").addEventListener("click", () => this.#deps.keep(this.#node, keptBranch(this.#node, this.#keptBranch)));
    byId("inspector-stop").addEventListener("click", () => this.#bench.stop());
    this.show(null);
  }

  get isOpen() {
    return !this.#root.hidden;
  }

  set isOpen(isOpen) {
    this.#root.hidden = !isOpen;
    if (isOpen) this.show(this.#node);
  }

  /** Hears which answer is the last one: it is shown, unless the reader looks at an earlier one. */
  follow(last) {
    const isNew = last !== this.#last;
    this.#last = last;
    if (isNew || this.#node === last) this.show(last);
  }

  /** Shows an answer of the conversation; null where it has none. A closed inspector remembers it for later. */
  show(node) {
    this.#node = node;
    const numEvents = node?.events.length ?? 0;
    if (!this.isOpen || (this.#shown?.node === node && this.#shown.numEvents === numEvents)) return;
    this.#rememberBranches();
    this.#shown = { node, numEvents };
    this.#root.classList.toggle("empty", node === null);
    byId("inspector-title").textContent = node?.model ?? words.inspector.nothing;
    byId("inspector-details").replaceChildren(...(node === null ? [] : this.#facts(node)));
    if (node !== null) {
      this.#bench.setColumns(1);
      const own = { ...answerOfNode(node), asked: () => this.#deps.asked(node) };
      this.#bench.columns[0].open([own, ...(this.#branches.get(node) ?? [])]);
    }
    this.#bench.release();
    this.#showButtons();
  }

  open(node) {
    this.#node = node;
    this.#onToggle(true);
  }

  /** What was begun of an answer is there again when the reader comes back to it. */
  #rememberBranches() {
    const { answers = [] } = this.#bench.columns[0] ?? {};
    if (this.#shown?.node != null) this.#branches.set(this.#shown.node, answers.slice(1));
  }

  /** The branch that is shown, where it can be an answer of the conversation; else null. */
  get #keptBranch() {
    const { answer = null, answers = [] } = this.#bench.columns[0] ?? {};
    const isBranch = answer !== null && answer !== answers[0] && answer.numGiven > 0 && answer.text !== answers[0].text;
    const hasEnded = isBranch && !this.#bench.isRunning && answer.error === null;
    return hasEnded && saidBy(this.#node, answer) !== null ? answer : null;
  }

  #facts(node) {
    const { inspector } = words;
    const { metrics, usage } = node;
    const rows = [
      [inspector.model, node.model ?? "–"],
      [inspector.written, new Date(node.created).toLocaleString(words.common.locale)],
      [inspector.figures, tellFigures(node.figures).join(" · ")],
      [inspector.transport, node.transport ?? "–"],
      [inspector.prompt, usage?.prompt_tokens === undefined ? null : inspector.numTokens(usage.prompt_tokens, usage.prompt_tokens_details?.cached_tokens ?? 0)],
      [inspector.seed, node.seed === null ? null : String(node.seed)],
    ];
    const list = make("dl", "facts");
    list.append(...rows.filter(([, value]) => value !== null && value !== "").map(([name, value]) => fact(name, value)));
    const settings = make("dl", "facts");
    const given = Object.entries(node.parameters).filter(([name]) => name !== "model" && name !== "seed");
    settings.append(...given.map(([name, value]) => fact(name, typeof value === "string" ? value : JSON.stringify(value))));
    const parts = [list, make("h3", "", inspector.settings)];
    parts.push(given.length > 0 ? settings : make("p", "note", inspector.asRecommended));
    if (metrics !== null) {
      const timings = make("dl", "facts");
      timings.append(...Object.entries(metrics).filter(([, value]) => typeof value !== "object").map(([name, value]) => fact(name.replaceAll("_", " "), String(value))));
      parts.push(make("h3", "", inspector.timings), timings);
    }
    return parts;
  }

  #showButtons() {
    const { isRunning, columns } = this.#bench;
    const hasProbabilities = columns.some(({ answers }) => answers.some(({ tokens }) => tokens.some(({ logprob }) => logprob !== null)));
    byId("inspector-unknown").hidden = isRunning || hasProbabilities;
    byId("inspector-replay").hidden = isRunning;
    byId("inspector-replay").disabled = this.#node?.promptTokens == null;
    byId("inspector-keep").hidden = this.#keptBranch === null;
    byId("inspector-stop").hidden = !isRunning;
  }
}
