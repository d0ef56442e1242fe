/**
 * The tokens of one answer as a text in which each can be looked at.
 *
 * Tokens are added in blocks, and only the last block is ever laid out anew; blocks out of sight are not laid out at all
 * (`content-visibility`). A block ends where a line of the text ends, so that the text wraps as if there were none; when
 * its width changes, the blocks are made anew. Nothing is made but between two frames, and no more than fits into one.
 */

import { shown } from "../answer/prompt_tokens.js";
import { make } from "../page/dom.js";
import { probability, surprise } from "./answer.js";

const BLOCK = 96; // tokens from which on a block ends with its line
const MOST_IN_LINE = 48; // tokens at the end of a block that are searched for the beginning of its last line
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
  #elements = []; // of the tokens that are drawn
  #block = null;
  #endsAt = BLOCK; // tokens of the block with which its end is looked for
  #width = 0; // of the blocks that are drawn
  #frame = null;
  #active = null;
  #pointed = null; // the place of the token under the pointer
  #colouring;
  #different = null;

  /** @param {HTMLElement} element @param {(at: number|null, isKept: boolean) => void} onSelect null: its token is not shown any more */
  constructor(element, onSelect, colouring = "probability") {
    this.#element = element;
    this.#onSelect = onSelect;
    this.#colouring = colouring;
    // Not `pointerover`: a token that slides under a resting pointer is not pointed at.
    element.addEventListener("pointermove", (event) => this.#point(event));
    element.addEventListener("pointerleave", () => (this.#pointed = null));
    element.addEventListener("click", (event) => {
      const at = placeOf(event);
      if (at !== null) this.select(at);
    });
    element.addEventListener("keydown", (event) => this.#onKey(event));
    new ResizeObserver(() => this.#reflow()).observe(element);
  }

  /** Shows another answer; its tokens may still be coming. */
  show(answer) {
    if (this.#active !== null) this.#onSelect(null, true);
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
    if (this.#numDrawn === this.#tokens.length) return;
    this.#element.setAttribute("aria-busy", "true");
    this.#frame ??= requestAnimationFrame(() => this.#draw());
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
    this.#onSelect(at, isKept);
    if (isKept) token?.scrollIntoView({ block: "nearest" }); // above the card, which may lie over the end of the page
  }

  #clear() {
    if (this.#frame !== null) cancelAnimationFrame(this.#frame);
    this.#frame = null;
    this.#numDrawn = 0;
    this.#elements = [];
    this.#block = null;
    this.#active = null;
    this.#pointed = null;
    this.#element.removeAttribute("aria-busy");
    this.#element.replaceChildren();
  }

  /** Lines end elsewhere in another width. */
  #reflow() {
    const { clientWidth: width } = this.#element;
    if (width === this.#width || width === 0) return;
    const active = this.#active;
    this.#width = width;
    if (this.#element.childElementCount < 2) return;
    // Its height stays meanwhile, so that no scroll bar comes and goes, which would change the width again.
    const height = `${this.#element.offsetHeight}px`;
    this.#clear();
    this.#element.style.minHeight = height;
    this.#active = active;
    this.update();
  }

  #draw() {
    this.#frame = null;
    const element = this.#element;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
    const began = performance.now();
    const isInTime = () => this.#numDrawn < this.#tokens.length && performance.now() - began < FRAME_BUDGET;
    while (isInTime()) {
      if (this.#block === null) this.#beginBlock([]);
      const fragment = document.createDocumentFragment();
      for (let room = this.#endsAt - this.#block.childElementCount; room > 0 && isInTime(); room -= 1) {
        const token = this.#make(this.#tokens[this.#numDrawn], this.#numDrawn);
        this.#elements.push(token);
        fragment.append(token);
        this.#numDrawn += 1;
      }
      this.#block.append(fragment);
      if (this.#block.childElementCount >= this.#endsAt) this.#endBlock();
    }
    if (this.#numDrawn === this.#tokens.length) {
      element.style.minHeight = "";
      element.removeAttribute("aria-busy");
    }
    if (isAtEnd) element.scrollTop = element.scrollHeight;
    this.update();
  }

  #beginBlock(tokens) {
    const startsWithSpace = tokens[0]?.textContent.startsWith(" ");
    this.#block = make("div", startsWithSpace ? "token-block wrapped" : "token-block");
    this.#block.append(...tokens);
    this.#element.append(this.#block);
    this.#endsAt = BLOCK;
  }

  /** The block's last line, which may grow, begins the next one. A block without a second line goes on. */
  #endBlock() {
    const tokens = [...this.#block.children];
    const least = Math.max(1, tokens.length - MOST_IN_LINE);
    let at = tokens.length - 1;
    while (at >= least && !startsLine(tokens[at], tokens[at - 1])) at -= 1;
    if (at >= least) this.#beginBlock(tokens.slice(at));
    else this.#endsAt = tokens.length + MOST_IN_LINE / 2;
  }

  #make(token, at) {
    const shade = shadeOf(token, this.#colouring);
    const element = make("span", shade === null ? "token" : `token shade${shade}`, shown(token.text));
    element.dataset.at = String(at);
    if (at < this.#answer.numGiven) element.classList.add("given");
    if (token.isForced) element.classList.add("chosen");
    if (token.masked > LEAST_MASKED) element.classList.add("forced");
    if (at === this.#different) element.classList.add("differs");
    if (at === this.#active) element.classList.add("active");
    return element;
  }

  #tokenAt(at) {
    return at === null ? null : (this.#elements[at] ?? null);
  }

  #point(event) {
    const at = placeOf(event);
    if (at === this.#pointed) return;
    this.#pointed = at;
    if (at !== null) this.select(at, false);
  }

  #onKey(event) {
    const step = { ArrowRight: 1, ArrowDown: 10, ArrowLeft: -1, ArrowUp: -10 }[event.key];
    if (step === undefined || this.#numDrawn === 0) return;
    event.preventDefault();
    const from = this.#active ?? (step > 0 ? -1 : this.#numDrawn);
    this.select(Math.min(Math.max(from + (this.#active === null ? Math.sign(step) : step), 0), this.#numDrawn - 1));
  }
}

/** The place of the token that an event is about; null where it is about none. */
function placeOf(event) {
  const at = event.target.closest?.(".token")?.dataset.at;
  return at === undefined ? null : Number(at);
}

/** Whether a line begins with a token. The space before its word may hang at the end of the line above. */
function startsLine(token, before) {
  const lines = token.getClientRects();
  const end = [...before.getClientRects()].at(-1)?.top;
  if (lines.length === 0 || end === undefined) return false; // they are not shown
  if (lines[0].top > end) return true;
  return token.textContent.startsWith(" ") && !token.textContent.includes("\n") && [...lines].at(-1).top > end;
}
