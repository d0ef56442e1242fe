/** Reads the answer that is written to screen readers, sentence by sentence. */

import { announce } from "../page/dom.js";
import { Sentences, Speaker } from "./sentences.js";

export class Narrator {
  #node = null;
  #sentences;
  #speaker;

  /** More text of an answer; another answer begins anew. */
  tell(node, text) {
    if (this.#node !== node) {
      this.#node = node;
      this.#sentences = new Sentences();
      this.#speaker = new Speaker(announce);
    }
    this.#speaker.tell(this.#sentences.feed(text));
  }

  /** An answer has ended; what it ends with may be no whole sentence. */
  end(node) {
    if (this.#node === node) this.#speaker.tell(this.#sentences.end());
  }

  /** Another conversation is shown. */
  forget() {
    this.#node = null;
  }
}
