/** What is known of one token: id, probability, rank, and its alternatives, each of which begins a branch. */

import { make } from "../page/dom.js";
import { probability, surprise } from "./answer.js";

export class TokenCard {
  #element;
  #onBranch;
  #key = "";

  /** @param {HTMLElement} element @param {(at: number, alternative: object) => void} onBranch */
  constructor(element, onBranch) {
    this.#element = element;
    this.#onBranch = onBranch;
    this.show(null, null);
  }

  /** @param {import("./answer.js").Answer|null} answer @param {number|null} at */
  show(answer, at) {
    const token = at === null ? undefined : answer?.tokens[at];
    if (token === undefined) {
      this.#element.replaceChildren(make("p", "note", "Point at a token, or move with the arrow keys, to see what else it could have been."));
      return;
    }
    const facts = [`token ${at + 1}`];
    if (token.id !== null) facts.push(`id ${token.id}`);
    if (token.logprob !== null) facts.push(`probability ${percent(probability(token.logprob))}`, `surprise ${surprise(token.logprob).toFixed(1)} bits`);
    if (token.rank !== null) facts.push(`rank ${token.rank}`);
    if (token.isForced) facts.push("chosen by you");
    if (token.masked > 0) facts.push(`the grammar took away ${percent(token.masked)}`);
    const head = make("p", "card-head");
    head.append(make("code", "", JSON.stringify(token.text)), make("span", "", facts.join(" · ")));
    this.#element.replaceChildren(head);
    if (token.top.length === 0) {
      this.#element.append(make("p", "note", "This answer came without probabilities; Play again asks for them."));
      return;
    }
    const canBranch = answer.promptTokens !== null && answer.finish !== null;
    const list = make("ul", "alternatives");
    for (const alternative of token.top) list.append(this.#makeAlternative(alternative, token, at, canBranch));
    this.#element.append(list);
  }

  #makeAlternative(alternative, token, at, canBranch) {
    const item = make("li");
    const isTaken = alternative.id === token.id;
    const button = make("button", isTaken ? "taken" : "");
    button.disabled = isTaken || !canBranch || alternative.id === null;
    button.title = isTaken ? "this one was taken" : "go on with this token";
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
