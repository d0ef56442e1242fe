/** Where a message is written: its text, the files that go with it, and how full the model's context is. */

import { Attachments } from "../attachments/attachments.js";
import { listenForFiles } from "../attachments/drops.js";
import { announce, byId, onEnter } from "../page/dom.js";
import { picturesOf } from "../store/messages.js";
import { words } from "../words/words.js";

const COUNT_DELAY = 700; // milliseconds of quiet before the context is counted anew
const DRAFT_DELAY = 300;

export class Composer {
  #input = byId("chat-input");
  #error = byId("chat-error");
  #attachments = new Attachments(() => {
    this.setNext(this.#conversation, false);
    this.#keepDraft();
    this.recount();
    this.focus();
    this.#deps.filesChanged();
  }, () => this.#deps.seesPictures());
  #conversation = null;
  #isBusy = false;
  #isFull = false;
  #next = new WeakSet(); // conversations whose message is sent when the answer has ended
  #timer = null;
  #draftTimer = null;
  #deps;

  /**
   * @param {{submit: () => void, interrupt: () => void, editLast: () => void, drafts: import("../store/drafts.js").Drafts,
   *   seesPictures: () => boolean, filesChanged: () => void, shorten: () => void, create: () => void, place: () => Promise<void>,
   *   count: (content: string, attachments: object[]) => Promise<{used: number, limit: number}|null>}} deps
   */
  constructor(deps) {
    this.#deps = deps;
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    onEnter(this.#input, () => this.#submit());
    byId("chat-queue").addEventListener("click", () => {
      this.#submit();
      this.focus();
    });
    byId("chat-next-now").addEventListener("click", () => {
      deps.interrupt();
      this.focus();
    });
    this.#input.addEventListener("input", () => {
      this.setNext(this.#conversation, false);
      this.recount();
      clearTimeout(this.#draftTimer);
      this.#draftTimer = setTimeout(() => this.#keepDraft(), DRAFT_DELAY);
    });
    globalThis.addEventListener("pagehide", () => this.#keepDraft());
    this.#input.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowUp" || this.#input.value !== "") return;
      event.preventDefault();
      deps.editLast();
    });
    byId("context-shorten").addEventListener("click", deps.shorten);
    byId("context-new").addEventListener("click", deps.create);
    const chooser = byId("chat-file");
    byId("chat-attach").addEventListener("click", () => chooser.click());
    chooser.addEventListener("change", async () => {
      await this.attach([...chooser.files]);
      chooser.value = "";
    });
    this.#attachments.render(byId("chat-files"));
    listenForFiles(async (files) => {
      await deps.place();
      this.attach(files);
    });
  }

  focus() {
    this.#input.focus({ preventScroll: true });
  }

  get isEmpty() {
    return this.#input.value.trim() === "" && this.#attachments.files.length === 0;
  }

  /** Whether the next message has no room in the model's context. */
  get isFull() {
    return this.#isFull;
  }

  /** The pictures that go with the message. */
  get pictures() {
    return picturesOf([{ attachments: this.#attachments.files }]);
  }

  /** Moves the focus to the button that removes the first picture. */
  focusPicture() {
    this.#attachments.pictureButton?.focus();
  }

  /** Marks whether a message is sent when the answer has ended; a change holds it back. @returns {boolean} whether it was to be sent */
  setNext(conversation, isNext) {
    const wasNext = this.#next.delete(conversation);
    if (isNext) this.#next.add(conversation);
    if (conversation === this.#conversation) this.#showNext();
    return wasNext;
  }

  /** Whether an answer is being written in the conversation that is shown: a message waits for its end. */
  set isBusy(isBusy) {
    this.#isBusy = isBusy;
    this.#showNext();
  }

  set text(text) {
    this.#input.value = text;
    this.#showNext();
  }

  /** Adds a text to what is written. */
  insert(text) {
    const { value } = this.#input;
    this.#input.value = [value.trim(), text].filter((part) => part !== "").join("\n\n");
    this.#input.dispatchEvent(new Event("input"));
    this.focus();
  }

  /** Another conversation is shown, or a new one has its address now: its draft stands in the fields. */
  open(conversation) {
    const isSame = conversation === this.#conversation;
    // Somebody was faster than the page: a file may still be read.
    const isEarly = this.#conversation === null && !(this.isEmpty && this.#attachments.reading.length === 0);
    if (this.#conversation !== null && !isSame) this.#keepDraft();
    this.#conversation = conversation;
    this.#showNext();
    this.#showFull(false);
    if (!isSame && !isEarly) this.put(this.#deps.drafts.get(this.#draftId) ?? { content: "", attachments: [] });
  }

  /** What is written and attached; the fields are empty afterwards. */
  take() {
    const taken = { content: this.#input.value.trim(), attachments: this.#attachments.files };
    this.put({ content: "", attachments: [] });
    return taken;
  }

  /** Writes a message back into the fields, so that nothing typed is lost. */
  put({ content, attachments }) {
    this.#input.value = content;
    this.#attachments.files = attachments;
    this.#deps.filesChanged();
    this.#showError("");
    this.#showNext();
    this.#keepDraft();
    this.recount();
  }

  /** Reads files; what has no text, or too much, is named. */
  async attach(files) {
    this.#showError("");
    announce("");
    const problems = await this.#attachments.add(files);
    if (problems === null) return;
    this.#showError(problems.join(" "));
    if (problems.length < files.length) announce(words.attachments.attached(files.length - problems.length));
    this.#keepDraft();
  }

  /** A phone has no key that sends, and Stop is in the place of Send: a button of its own lets the message wait. */
  #showNext() {
    const isNext = this.#next.has(this.#conversation);
    byId("chat-next").hidden = !isNext;
    byId("chat-queue").hidden = isNext || !this.#isBusy || this.isEmpty;
  }

  /** A message waits for the files that go with it. */
  #submit() {
    const [name] = this.#attachments.reading;
    if (name === undefined) this.#deps.submit();
    else this.#showError(words.attachments.stillRead(name));
  }

  /** Counts the context anew, once the reader has paused. */
  recount() {
    clearTimeout(this.#timer);
    const timer = (this.#timer = setTimeout(async () => {
      const counted = await this.#deps.count(this.#input.value.trim(), this.#attachments.files);
      if (counted === null || timer !== this.#timer) return; // a later count says more
      this.showContext(counted);
      this.#showFull(counted.used >= counted.limit);
    }, COUNT_DELAY));
  }

  /** @param {{used: number, limit: number}} counted in tokens */
  showContext({ used, limit }) {
    const gauge = byId("context-gauge");
    gauge.max = limit;
    gauge.high = limit * 0.85;
    gauge.low = limit * 0.6;
    gauge.optimum = 0;
    gauge.value = Math.min(used, limit);
    // Not `toLocaleString`, which takes a whole frame when it is called for the first time.
    const [shownUsed, shownLimit] = [used, limit].map((count) => String(count).replace(/\B(?=(\d{3})+$)/g, words.common.thousands));
    byId("context-words").textContent = words.composer.context(shownUsed, shownLimit);
    byId("context").hidden = false;
    byId("context").classList.toggle("full", used >= limit);
  }

  /** A full context holds the message back, and offers ways out. */
  #showFull(isFull) {
    this.#isFull = isFull;
    byId("context-full").hidden = !isFull;
    byId("chat-send").classList.toggle("held", isFull);
    byId("chat-send").setAttribute("aria-disabled", String(isFull));
  }

  get #draftId() {
    return this.#conversation.tree.size === 0 ? null : this.#conversation.id;
  }

  #keepDraft() {
    clearTimeout(this.#draftTimer);
    if (this.#conversation?.kind !== "chat" || this.#conversation.isGone) return;
    this.#deps.drafts.set(this.#draftId, { content: this.#input.value, attachments: this.#attachments.files });
  }

  #showError(text) {
    this.#error.textContent = text;
    this.#error.hidden = text === "";
  }
}
