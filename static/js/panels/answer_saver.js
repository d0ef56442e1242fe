/** Keeps an answer's node while it grows, so that a reload finds it with the place of its stream. */

const INTERVAL = 400; // milliseconds

export class AnswerSaver {
  #library;
  #conversation;
  #node;
  #timer = null;
  #isSaving = Promise.resolve();

  /** @param {Promise<import("../store/library.js").Library>} library */
  constructor(library, conversation, node) {
    this.#library = library;
    this.#conversation = conversation;
    this.#node = node;
  }

  /** The node has more than it had. */
  changed() {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#write((library) => library.saveNode(this.#conversation, this.#node));
    }, this.#node.events.length < 2 ? 0 : INTERVAL);
  }

  /** Keeps the node as it is, with its conversation. */
  save() {
    clearTimeout(this.#timer);
    this.#timer = null;
    return this.#write((library) => library.save(this.#conversation, [this.#node]));
  }

  #write(write) {
    this.#isSaving = this.#isSaving.then(async () => {
      // A conversation that was deleted meanwhile does not come back.
      if (this.#conversation.isGone) return;
      try {
        await write(await this.#library);
      } catch (error) {
        console.info(`The answer cannot be kept: ${error}`);
      }
    });
    return this.#isSaving;
  }
}
