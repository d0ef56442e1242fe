/** The messages of the path that is shown, from the top, and the welcome where there are none. */

import { Follower, byId, make } from "../page/dom.js";
import { words } from "../words/words.js";
import { MessageView, actOnCode } from "./chat_message.js";

const AT_ONCE = 24; // messages that are made before the first frame, and then in each turn of the page

export class ChatLog {
  #element = byId("chat-log");
  #welcome = byId("chat-welcome");
  #end = byId("chat-end");
  #follower = new Follower(this.#element);
  #path = [];
  #first = 0; // of the path, the first message that is made; earlier ones follow a few at a time
  #views = [];
  #actions;
  #sentFrom = null;
  #timer = null;

  /** @param {object} actions of each message, as of `MessageView` @param {(text: string) => void} onExample */
  constructor(actions, onExample) {
    this.#actions = actions;
    actOnCode(this.#element, actions.lost);
    for (const example of this.#welcome.querySelectorAll("button")) {
      example.addEventListener("click", () => onExample(example.textContent));
    }
    this.#element.addEventListener("scroll", () => this.#showEnd(), { passive: true });
    // A reader at the end stays there when a picture gets its height, and when what stands below takes more room.
    const stay = () => this.#end.hidden && this.scrollToEnd();
    this.#element.addEventListener("load", stay, { capture: true });
    new ResizeObserver(stay).observe(this.#element);
    this.#end.addEventListener("click", () => this.scrollToEnd());
  }

  /** Nothing is shown any more. */
  clear() {
    clearTimeout(this.#timer);
    this.#element.replaceChildren(this.#welcome);
    this.#views = [];
    this.#path = [];
    this.#first = 0;
  }

  /** Shows a path of the tree; messages that stay are not touched. */
  show(path) {
    this.#welcome.hidden = path.length > 0;
    if (this.#views.length > 0 && this.#views[0].node !== path[this.#first]) this.clear();
    if (this.#views.length === 0) this.#first = Math.max(0, path.length - AT_ONCE);
    this.#path = path;
    let same = 0;
    while (same < this.#views.length && this.#views[same].node === path[this.#first + same]) same += 1;
    for (const view of this.#views.splice(same)) view.element.remove();
    for (const view of this.#views) view.showBranches(); // a sibling may have come or gone
    const added = path.slice(this.#first + same).map((node) => new MessageView(node, this.#actions));
    this.#views.push(...added);
    this.#element.append(...added.map(({ element }) => element));
    this.#showSentFrom();
    this.#showEnd();
    if (this.#first > 0) this.#timer ??= setTimeout(() => this.#makeEarlier());
  }

  /** The id of the first message that the model gets, or null. */
  set sentFrom(id) {
    this.#sentFrom = id;
    this.#showSentFrom();
  }

  /** The view of a node, or undefined where it is not shown. */
  viewOf(node) {
    return this.#views.findLast((view) => view.node === node);
  }

  /** The last message, or the last of this role. */
  last(role = null) {
    return this.#views.findLast(({ node }) => role === null || node.role === role);
  }

  scrollToEnd() {
    const go = () => (this.#element.scrollTop = this.#element.scrollHeight);
    go();
    // Messages that come into sight, or leave it, get other heights within the next two frames.
    requestAnimationFrame(() => {
      go();
      requestAnimationFrame(go);
    });
  }

  /** Runs what lengthens a message; a reader at the end stays there. */
  around(write) {
    this.#follower.around(write);
    this.#showEnd();
  }

  set isBusy(isBusy) {
    this.#element.classList.toggle("writing", isBusy);
  }

  /** Earlier messages come above those that are shown, which stay where they are. */
  #makeEarlier() {
    this.#timer = null;
    const first = Math.max(0, this.#first - AT_ONCE);
    const earlier = this.#path.slice(first, this.#first).map((node) => new MessageView(node, this.#actions));
    this.#first = first;
    this.#views.unshift(...earlier);
    const fromEnd = this.#element.scrollHeight - this.#element.scrollTop;
    this.#welcome.after(...earlier.map(({ element }) => element));
    this.#element.scrollTop = this.#element.scrollHeight - fromEnd;
    this.#showSentFrom();
    if (first > 0) this.#timer = setTimeout(() => this.#makeEarlier());
  }

  #showSentFrom() {
    this.#element.querySelector(":scope > .sent-from")?.remove();
    const view = this.#sentFrom === null ? undefined : this.#views.find(({ node }) => node.id === this.#sentFrom);
    if (view !== undefined) view.element.before(make("p", "sent-from", words.chat.notSentAbove));
  }

  #showEnd() {
    this.#end.hidden = this.#follower.isAtEnd;
  }
}
