/** Streams text into an element: prose as it is, fenced code as code. Only text nodes are ever added. */

import { make } from "../page/dom.js";
import { FenceSplitter } from "./fences.js";

export class MessageText {
  #element;
  #splitter = new FenceSplitter();
  #target = null; // what prose or code goes into now

  constructor(element) {
    this.#element = element;
  }

  append(text) {
    this.#write(this.#splitter.feed(text));
  }

  end() {
    this.#write(this.#splitter.end());
    this.#element.normalize();
  }

  #write(pieces) {
    for (const piece of pieces) {
      if (piece.kind === "open") {
        const block = make("pre", "code");
        if (piece.language !== "") block.dataset.language = piece.language;
        block.tabIndex = 0; // long lines scroll, also by keyboard
        this.#target = make("code");
        block.append(this.#target);
        this.#element.append(block);
      } else if (piece.kind === "close") {
        this.#target = null;
      } else {
        this.#target ??= this.#element.appendChild(make("div", "prose"));
        this.#target.append(piece.text);
      }
    }
  }
}
