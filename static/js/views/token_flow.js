/**
 * The tokens of one answer as a text in which each can be looked at.
 *
 * Tokens are added in blocks, and only the last block is ever laid out anew; blocks out of sight are not laid out at all
 * (`content-visibility`). Nothing is made but between two frames, and no more than fits into one.
 */

import { shown } from "../answer/prompt_tokens.js";
import { make } from "../page/dom.js";
import { probability, surprise } from "./answer.js";

const BLOCK = 96; // tokens
const FRAME_BUDGET = 4; // milliseconds; the browser lays out and paints what is made for three times as long
const NUM_SHADES = 8;
const LEAST_MASKED = 0.01; // where a grammar took away less of the probability, it forced nothing
const MOST_SURPRISE = 8; // bits; what is above has the last shade

/** A shade from 0, likely, to NUM_SHADES - 1. */
export function shadeOf(token, colouring) {
  if (token.logprob === null || colouring === "none") return null;
  const share = colouring === "surprise" ? surprise(token.logprob) / MOST_SURPRISE : 1 - probability(token.logprob);
  return Math.min(NUM_SHADES - 1, Math.max(0, Math.floor(share * NUM_SHADES)));
}

export class TokenFlow {
  #element;
  #onSelect;
  #tokens = [];
  #answer = null;
  #numDrawn = 0;
  #block = null;
  #frame = null;
  #active = null;
  #colouring;
  #different = null;

  /** @param {HTMLElement} element @param {(at: number|null, isKept: boolean) => void} onSelect */
  constructor(element, onSelect, colouring = "probability") {
    this.#element = element;
    this.#onSelect = onSelect;
    this.#colouring = colouring;
    element.addEventListener("pointerover", (event) => this.#point(event, false));
    element.addEventListener("click", (event) => this.#point(event, true));
    element.addEventListener("keydown", (event) => this.#onKey(event));
  }

  /** Shows another answer; its tokens may still be coming. */
  show(answer) {
    this.#answer = answer;
    this.#tokens = answer.tokens;
    this.#clear();
    this.update();
  }

  set colouring(colouring) {
    this.#colouring = colouring;
    this.#clear();
    this.update();
  }

  /** More tokens have come. */
  update() {
    if (this.#numDrawn < this.#tokens.length) this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  /** Marks the first place that differs from other answers; null for none. */
  set different(at) {
    if (at === this.#different) return;
    this.#tokenAt(this.#different)?.classList.remove("differs");
    this.#different = at;
    this.#tokenAt(at)?.classList.add("differs");
  }

  /** Makes the token at a place the one that is looked at. */
  select(at, isKept = true) {
    if (at !== null && (at < 0 || at >= this.#numDrawn)) return;
    const old = this.#tokenAt(this.#active);
    old?.classList.remove("active");
    this.#active = at;
    const token = this.#tokenAt(at);
    token?.classList.add("active");
    if (isKept) token?.scrollIntoView({ block: "nearest" });
    this.#onSelect(at, isKept);
  }

  #clear() {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
    this.#numDrawn = 0;
    this.#block = null;
    this.#active = null;
    this.#element.replaceChildren();
  }

  #draw() {
    this.#frame = null;
    const element = this.#element;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
    const began = performance.now();
    let fragment = null;
    while (this.#numDrawn < this.#tokens.length && performance.now() - began < FRAME_BUDGET) {
      if (this.#block === null || this.#block.childElementCount + (fragment?.childElementCount ?? 0) >= BLOCK) {
        if (fragment !== null) this.#block.append(fragment);
        fragment = null;
        this.#block = make("div", "token-block");
        element.append(this.#block);
      }
      fragment ??= document.createDocumentFragment();
      fragment.append(this.#make(this.#tokens[this.#numDrawn], this.#numDrawn));
      this.#numDrawn += 1;
    }
    if (fragment !== null) this.#block.append(fragment);
    if (isAtEnd) element.scrollTop = element.scrollHeight;
    this.update();
  }

  #make(token, at) {
    const shade = shadeOf(token, this.#colouring);
    const element = make("span", shade === null ? "token" : `token shade${shade}`, shown(token.text));
    element.dataset.at = String(at);
    if (at < this.#answer.numGiven) element.classList.add("given");
    if (token.isForced) element.classList.add("chosen");
    if (token.masked > LEAST_MASKED) element.classList.add("forced");
    if (at === this.#different) element.classList.add("differs");
    return element;
  }

  #tokenAt(at) {
    if (at === null) return null;
    return this.#element.children[Math.floor(at / BLOCK)]?.children[at % BLOCK] ?? null;
  }

  #point(event, isKept) {
    const at = event.target.closest?.(".token")?.dataset.at;
    if (at !== undefined) this.select(Number(at), isKept);
  }

  #onKey(event) {
    const step = { ArrowRight: 1, ArrowDown: 10, ArrowLeft: -1, ArrowUp: -10 }[event.key];
    if (step === undefined || this.#numDrawn === 0) return;
    event.preventDefault();
    const from = this.#active ?? (step > 0 ? -1 : this.#numDrawn);
    this.select(Math.min(Math.max(from + (this.#active === null ? Math.sign(step) : step), 0), this.#numDrawn - 1));
  }
}
