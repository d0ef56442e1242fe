/** An element that shows markdown as it arrives. */

import { patchChildren } from "./patch.js";
import { MarkdownStream } from "./stream.js";

export class MarkdownView {
  #element;
  #stream = new MarkdownStream();
  #numStable = 0;
  #open = []; // what the elements behind the stable ones are made of

  constructor(element) {
    this.#element = element;
  }

  append(text) {
    const { stable, open } = this.#stream.feed(text);
    this.#show([...stable, ...open]);
    this.#numStable += stable.length;
    this.#open = open;
  }

  end() {
    this.#show(this.#stream.end());
  }

  #show(blocks) {
    patchChildren(this.#element, this.#numStable, this.#open, blocks);
    this.#open = blocks;
  }
}
