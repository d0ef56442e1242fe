/** What is known of one token: id, probability, rank, and its alternatives, each of which begins a branch. */

import { make } from "../page/dom.js";
import { probability, surprise } from "./answer.js";
import { makeLegend } from "./token_legend.js";

const words = {
  hint: "Point at a token, tap it, or move with the arrow keys, to see what else it could have been.",
  token: (number) => `token ${number}`,
  id: (id) => `id ${id}`,
  probability: (share) => `probability ${share}`,
  surprise: (bits) => `surprise ${bits} bits`,
  rank: (rank) => `rank ${rank}`,
  chosen: "chosen by you",
  masked: (share) => `the grammar took away ${share}`,
  unknown: "This answer came without probabilities; Play again asks for them.",
  taken: "this one was taken",
  branch: "go on with this token",
  close: "Close",
};

export class TokenCard {
  #element;
  #content = make("div");
  #onBranch;

  /** @param {HTMLElement} element @param {(at: number, alternative: object) => void} onBranch */
  constructor(element, onBranch) {
    this.#element = element;
    this.#onBranch = onBranch;
    element.replaceChildren(this.#content, makeLegend());
    this.show(null, null);
  }

  /** @param {import("./answer.js").Answer|null} answer @param {number|null} at */
  show(answer, at) {
    const token = at === null ? undefined : answer?.tokens[at];
    this.#element.classList.toggle("open", token !== undefined);
    if (token === undefined) {
      this.#content.replaceChildren(make("p", "note", words.hint));
      return;
    }
    const facts = [words.token(at + 1)];
    if (token.id !== null) facts.push(words.id(token.id));
    if (token.logprob !== null) {
      facts.push(words.probability(percent(probability(token.logprob))), words.surprise(surprise(token.logprob).toFixed(1)));
    }
    if (token.rank !== null) facts.push(words.rank(token.rank));
    if (token.isForced) facts.push(words.chosen);
    if (token.masked > 0) facts.push(words.masked(percent(token.masked)));
    const head = make("p", "card-head");
    head.append(make("code", "", JSON.stringify(token.text)), make("span", "", facts.join(" · ")));
    const close = make("button", "small close", words.close);
    close.addEventListener("click", () => this.show(null, null));
    head.append(close);
    this.#content.replaceChildren(head);
    if (token.top.length === 0) {
      this.#content.append(make("p", "note", words.unknown));
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
    button.title = isTaken ? words.taken : words.branch;
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
