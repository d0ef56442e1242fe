/** How an answer of the conversation that is shown looks while it is written: drawn once a frame, read out, with its wait. */

import { Narrator } from "../answer/narrator.js";

export class ShownAnswer {
  #deps;
  #frame = null;
  #narrator = new Narrator();

  /**
   * @param {{shown: () => object|null, composer: () => import("./chat_composer.js").Composer,
   *   completion: () => import("./completion.js").Completion, log: () => import("./chat_log.js").ChatLog,
   *   modelOf: (conversation: object) => object|null}} deps `shown` is the conversation that is shown
   */
  constructor(deps) {
    this.#deps = deps;
  }

  /** Another conversation is shown. */
  forget() {
    this.#narrator.forget();
  }

  /** An answer has more than it had. */
  grew(conversation, node, chunk) {
    if (!this.#isShown(conversation)) return;
    this.#narrator.tell(node, chunk.text);
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      if (this.#isShown(conversation)) this.#draw(conversation, (completion) => completion.grow(node), node, (view) => view.refresh());
    });
  }

  /** What is being waited for, or an empty text. */
  waits(conversation, node, text) {
    if (!this.#isShown(conversation)) return;
    this.#draw(conversation, (completion) => completion.setWaiting(text), node, (view) => view.setWaiting(text));
  }

  ended(conversation, node) {
    if (!this.#isShown(conversation)) return;
    this.#draw(conversation, (completion) => completion.end(node), node, (view) => view.finish());
    this.#showUsage(conversation, node);
    this.#narrator.end(node);
  }

  #isShown(conversation) {
    return conversation === this.#deps.shown();
  }

  #draw({ kind }, inCompletion, node, inMessage) {
    if (kind === "completion") return inCompletion(this.#deps.completion());
    const log = this.#deps.log();
    return log.around(() => {
      const view = log.viewOf(node);
      if (view !== undefined) inMessage(view);
    });
  }

  #showUsage(conversation, { usage }) {
    const limit = this.#deps.modelOf(conversation)?.max_model_len;
    if (usage?.total_tokens && limit) this.#deps.composer().showContext({ used: usage.total_tokens, limit });
  }
}
