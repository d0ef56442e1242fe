/** The messages of the path that is shown, from the top, and the welcome where there are none. */

import { Follower, byId } from "../page/dom.js";
import { MessageView, copyCodeOnClick } from "./chat_message.js";

export class ChatLog {
  #element = byId("chat-log");
  #welcome = byId("chat-welcome");
  #follower = new Follower(this.#element);
  #views = [];
  #actions;

  /** @param {object} actions of each message, as of `MessageView` @param {(text: string) => void} onExample */
  constructor(actions, onExample) {
    this.#actions = actions;
    copyCodeOnClick(this.#element);
    for (const example of this.#welcome.querySelectorAll("button")) {
      example.addEventListener("click", () => onExample(example.textContent));
    }
  }

  /** Nothing is shown any more. */
  clear() {
    this.#element.replaceChildren(this.#welcome);
    this.#views = [];
  }

  /** Shows a path of the tree; messages that stay are not touched. */
  show(path) {
    this.#welcome.hidden = path.length > 0;
    let same = 0;
    while (same < path.length && this.#views[same]?.node === path[same]) same += 1;
    for (const view of this.#views.splice(same)) view.element.remove();
    for (const view of this.#views) view.showActions(); // a sibling may have come or gone
    for (const node of path.slice(same)) {
      const view = new MessageView(node, this.#actions);
      this.#views.push(view);
      this.#element.append(view.element);
    }
  }

  /** The view of a node, or undefined where it is not shown. */
  viewOf(node) {
    return this.#views.find((view) => view.node === node);
  }

  /** The last message, or the last of this role. */
  last(role = null) {
    return this.#views.findLast(({ node }) => role === null || node.role === role);
  }

  scrollToEnd() {
    this.#element.scrollTop = this.#element.scrollHeight;
  }

  /** Runs what lengthens a message; a reader at the end stays there. */
  around(write) {
    this.#follower.around(write);
  }

  set isBusy(isBusy) {
    this.#element.classList.toggle("writing", isBusy);
  }
}
