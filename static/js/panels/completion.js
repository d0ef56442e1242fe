/** A completion as the reader sees it: one text, which the model continues in place, and which can be changed anywhere. */

import { Follower, announce, byId, make, onEnter, showFigures } from "../page/dom.js";
import { textOf } from "../store/messages.js";
import { tellFigures } from "../words/figures.js";
import { words } from "../words/words.js";

export class Completion {
  #text = byId("story-text");
  #undo = byId("story-undo");
  #retry = byId("story-retry");
  #inspect = byId("story-inspect");
  #figures = byId("story-figures");
  #error = byId("story-error");
  #page = byId("story-page");
  #branches = byId("story-branches");
  #examples = byId("story-examples");
  #follower = new Follower(this.#text);
  #conversation = null;
  #answer = null; // the last one that is shown
  #numShown = 0; // characters of its content
  #isBusy = false;
  #deps;

  /**
   * @param {{drafts: import("../store/drafts.js").Drafts, submit: (text: string) => void, regenerate: (node: object) => void,
   *   takeBack: (node: object) => void, show: (id: string) => void, inspect: (node: object) => void}} deps
   */
  constructor(deps) {
    this.#deps = deps;
    byId("story-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    onEnter(this.#text, () => this.submit());
    this.#text.addEventListener("input", () => {
      this.#keepDraft();
      this.#showControls();
    });
    this.#undo.addEventListener("click", () => deps.takeBack(this.#answer));
    this.#retry.addEventListener("click", () => deps.regenerate(this.#answer));
    this.#inspect.addEventListener("click", () => deps.inspect(this.#answer));
    for (const example of this.#examples.querySelectorAll("button")) {
      example.addEventListener("click", () => {
        this.#text.value = words.completion[example.dataset.prompt];
        this.submit();
      });
    }
  }

  focus() {
    this.#text.focus({ preventScroll: true });
  }

  set isBusy(isBusy) {
    this.#isBusy = isBusy;
    this.#showControls();
  }

  submit() {
    if (!this.#isBusy) this.#deps.submit(this.#text.value.replace(/ +$/, ""));
  }

  /** What is written is sent. */
  forgetDraft() {
    this.#deps.drafts.set(this.#draftId, null);
  }

  /** Another conversation is shown. */
  open(conversation) {
    this.#conversation = conversation;
    this.#answer = null;
    this.#showOutcome([], "");
  }

  /** Shows the path of the conversation, and what was changed in it without being sent. */
  show(path) {
    const last = path.at(-1) ?? null;
    this.#answer = path.findLast(({ role }) => role === "assistant") ?? null;
    const isWritten = last?.role === "assistant" && last.finish === null;
    const draft = isWritten ? null : this.#deps.drafts.get(this.#draftId);
    if (isWritten) this.forgetDraft();
    this.#text.value = draft?.content ?? textOf(path);
    this.#numShown = this.#answer?.content.length ?? 0;
    this.#text.scrollTop = this.#text.scrollHeight;
    if (this.#answer === null) this.#showOutcome([], "");
    else this.#showOutcome(this.#answer.figures, this.#answer.finish ?? "", this.#answer.error);
    this.#showControls();
  }

  /** Shows what the answer has more than it had; one that is taken back, or on another branch, is not shown. */
  grow(node) {
    if (node !== this.#answer) return;
    const text = node.content.slice(this.#numShown);
    this.#numShown = node.content.length;
    const end = this.#text.value.length;
    if (text !== "") this.#follower.around(() => this.#text.setRangeText(text, end, end, "preserve"));
    showFigures(this.#figures, tellFigures(node.figures));
  }

  end(node) {
    if (node !== this.#answer) return;
    this.grow(node);
    this.#showOutcome(node.figures, node.finish, node.error);
    if (node.error === null) announce(node.content);
  }

  /** There is no answer: this is why. */
  fail(error) {
    const { value } = this.#text;
    this.#answer = this.#conversation.tree.path().findLast(({ role }) => role === "assistant") ?? null;
    this.#text.value = value;
    this.#showOutcome([], "error", error);
    this.#showControls();
  }

  setWaiting(text) {
    if (text !== "") showFigures(this.#figures, [text]);
  }

  get #draftId() {
    return this.#conversation.tree.size === 0 ? "completion" : this.#conversation.id;
  }

  #keepDraft() {
    const { value } = this.#text;
    const isChanged = value !== textOf(this.#conversation.tree.path());
    this.#deps.drafts.set(this.#draftId, isChanged ? { content: value, attachments: [] } : null);
  }

  #showOutcome(figures, finish, error = null) {
    showFigures(this.#figures, tellFigures(figures));
    this.#page.dataset.finish = finish;
    this.#error.textContent = error ?? "";
    this.#error.hidden = error === null;
  }

  #showControls() {
    const hasAnswer = this.#answer !== null;
    this.#text.readOnly = this.#isBusy;
    this.#page.classList.toggle("writing", this.#isBusy);
    this.#undo.disabled = this.#retry.disabled = this.#isBusy || !hasAnswer;
    this.#inspect.disabled = !hasAnswer;
    this.#examples.hidden = this.#isBusy || hasAnswer;
    this.#showBranches();
  }

  #showBranches() {
    const siblings = this.#answer === null ? [] : this.#conversation.tree.siblings(this.#answer.id);
    this.#branches.hidden = siblings.length < 2;
    if (siblings.length < 2) return;
    const at = siblings.indexOf(this.#answer);
    const step = (label, name, to) => {
      const button = make("button", "small", label);
      button.setAttribute("aria-label", name);
      button.disabled = this.#isBusy || siblings[to] === undefined;
      button.addEventListener("click", () => this.#deps.show(siblings[to].id));
      return button;
    };
    this.#branches.replaceChildren(
      step("‹", words.chat.previousBranch, at - 1), make("span", "place", `${at + 1}/${siblings.length}`),
      step("›", words.chat.nextBranch, at + 1),
    );
  }
}
