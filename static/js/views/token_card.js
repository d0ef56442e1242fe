/** What is known of one token: id, probability, rank, and its alternatives, each of which begins a branch. */

import { make } from "../page/dom.js";
import { words } from "../words/words.js";
import { probability, surprise } from "./answer.js";
import { makeLegend } from "./token_legend.js";

export class TokenCard {
  #element;
  #content = make("div");
  #onBranch;
  #onClose;

  /** @param {HTMLElement} element @param {(at: number, alternative: object) => void} onBranch @param {() => void} onClose */
  constructor(element, onBranch, onClose) {
    this.#element = element;
    this.#onBranch = onBranch;
    this.#onClose = onClose;
    element.replaceChildren(this.#content, makeLegend());
    this.show(null, null);
  }

  /**
   * @param {import("./answer.js").Answer|null} answer @param {number|null} at
   * @param {boolean} isKept the reader has clicked on the token: its card stays in sight
   */
  show(answer, at, isKept = false) {
    const token = at === null ? undefined : answer?.tokens[at];
    this.#element.classList.toggle("open", token !== undefined);
    this.#element.classList.toggle("kept", token !== undefined && isKept);
    if (token === undefined) {
      this.#content.replaceChildren(make("p", "note", words.token.hint));
      return;
    }
    const facts = [words.token.number(at + 1)];
    if (token.id !== null) facts.push(words.token.id(token.id));
    if (token.logprob !== null) {
      facts.push(words.token.probability(percent(probability(token.logprob))), words.token.surprise(surprise(token.logprob).toFixed(1)));
    }
    if (token.rank !== null) facts.push(words.token.rank(token.rank));
    if (token.isForced) facts.push(words.token.chosen);
    if (token.masked > 0) facts.push(words.token.masked(percent(token.masked)));
    const head = make("p", "card-head");
    head.append(make("code", "", JSON.stringify(token.text)), make("span", "", facts.join(" · ")));
    const close = make("button", "small close", words.common.close);
    close.addEventListener("click", () => this.#onClose());
    head.append(close);
    this.#content.replaceChildren(head);
    if (token.top.length === 0) {
      this.#content.append(make("p", "note", words.token.unknown));
      return;
    }
    const canBranch = answer.promptTokens !== null && answer.finish !== null;
    const list = make("ul", "alternatives");
    for (const alternative of token.top) list.append(this.#makeAlternative(alternative, token, at, canBranch));
    this.#content.append(list);
  }

  #makeAlternative(alternative, token, at, canBranch) {
    const item = make("li");
    const isTaken = alternative.id === token.id;
    const button = make("button", isTaken ? "taken" : "");
    button.disabled = isTaken || !canBranch || alternative.id === null;
    button.title = isTaken ? words.token.taken : words.token.branch;
    const share = probability(alternative.logprob);
    const bar = make("meter");
    bar.value = share;
    bar.setAttribute("aria-hidden", "true");
    button.append(make("code", "", JSON.stringify(alternative.text)), make("span", "", percent(share)), bar);
    button.addEventListener("click", () => this.#onBranch(at, alternative));
    item.append(button);
    return item;
  }
}

export function percent(share) {
  const value = 100 * share;
  return `${value >= 99.95 ? "100" : value >= 10 ? value.toFixed(1) : value >= 0.01 ? value.toFixed(2) : "< 0.01"} %`;
}
