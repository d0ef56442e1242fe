/** Changes of the conversation that is shown: branches, edited and deleted messages, and what brings these back. */

import { announce } from "../page/dom.js";
import { makeId } from "../store/library.js";
import { makeAnswer } from "../store/tree.js";
import { words } from "../words/words.js";

export class Edits {
  #deps;
  #library;

  /**
   * @param {Promise<import("../store/library.js").Library>} library
   * @param {{shown: () => object, isBusy: () => boolean, render: () => void, save: (conversation: object, nodes?: object[]) => void,
   *   ask: (node: object) => void, recount: () => void, changed: () => void, toast: import("../page/toast.js").Toast}} deps
   *   `shown` is the conversation that is shown, `recount` counts its tokens anew, `changed` hears that it came back
   */
  constructor(library, deps) {
    this.#library = library;
    this.#deps = deps;
  }

  /** Shows the branch with a message. */
  showBranch(id) {
    const conversation = this.#deps.shown();
    const { tree } = conversation;
    tree.show(id);
    this.#deps.render();
    const siblings = tree.siblings(id);
    announce(words.chat.branchOf(siblings.findIndex((node) => node.id === id) + 1, siblings.length));
    this.#deps.save(conversation);
  }

  /** Adds a message with another text as a branch; one of the reader is asked. */
  edit(node, text) {
    if (this.#deps.isBusy()) return;
    if (node.role === "user") {
      this.#deps.ask({ ...node, id: makeId(), content: text.trim(), created: Date.now() });
      return;
    }
    const { parent, model, parameters, transport, reasoning } = node;
    const edited = makeAnswer({ id: makeId(), parent, model, parameters, transport, created: Date.now() });
    Object.assign(edited, { content: text, reasoning, finish: "edited", figures: [["edited"]] });
    const conversation = this.#deps.shown();
    conversation.tree.add(edited);
    this.#deps.render();
    this.#deps.save(conversation, [edited]);
  }

  /** Adds a branch that was begun at one of its tokens beside an answer. @param {object} kept see `views/branch.js` */
  keepBranch(node, kept) {
    const conversation = this.#deps.shown();
    if (conversation.tree.get(node.id) !== node) return;
    const { parent, model } = node;
    const { parameters, transport, ...rest } = kept;
    const answer = makeAnswer({ id: makeId(), parent, model, parameters, transport, created: Date.now() });
    conversation.tree.add(Object.assign(answer, rest));
    this.#deps.render();
    this.#deps.save(conversation, [answer]);
    this.#deps.recount();
    this.#deps.changed();
    announce(words.chat.branchKept);
  }

  /** Deletes a message and all below it, which can be undone. */
  remove(node) {
    if (this.#deps.isBusy()) return;
    const conversation = this.#deps.shown();
    const nodes = this.drop(node.id);
    this.#offerUndo(words.chat.messageDeleted, conversation, nodes);
    announce(words.chat.messageDeleted);
  }

  /** Takes back an answer of a completion, with the others in its place: the text before it can be changed. */
  takeBack(node) {
    if (this.#deps.isBusy()) return;
    const conversation = this.#deps.shown();
    const { tree } = conversation;
    const nodes = tree.siblings(node.id).flatMap(({ id }) => tree.below(id));
    for (const { id } of tree.siblings(node.id)) tree.remove(id);
    this.#deps.render();
    this.#library.then((library) => library.removeNodes(conversation, nodes)).then(() => this.#deps.save(conversation));
    this.#offerUndo(words.chat.continuationRemoved, conversation, nodes);
  }

  /** Takes a message out of the conversation, with all below it. @returns {object[]} what is gone */
  drop(id) {
    const conversation = this.#deps.shown();
    const nodes = conversation.tree.below(id);
    conversation.tree.remove(id);
    this.#deps.render();
    this.#deps.recount();
    const isEmpty = conversation.tree.size === 0;
    this.#library.then((library) => (isEmpty ? library.forget(conversation.id) : library.removeNodes(conversation, nodes)))
      .then(() => this.#deps.save(conversation));
    return nodes;
  }

  #offerUndo(text, conversation, nodes) {
    this.#deps.toast.show(text, async () => {
      conversation.tree.restore(nodes);
      await (await this.#library).restore(conversation);
      if (conversation === this.#deps.shown()) this.#deps.render();
      this.#deps.changed();
    });
  }
}
