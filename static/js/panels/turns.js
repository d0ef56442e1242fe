/** The turns of conversations: a question and its answer, another answer, one that is continued, more of a completion. */

import { continuedFrom } from "../answer/recorder.js";
import { addressOf } from "../page/route.js";
import { makeId } from "../store/library.js";
import { textOf } from "../store/messages.js";
import { makeAnswer, readNode } from "../store/tree.js";

export class Turns {
  #answers;
  #calls;
  #deps;
  #refused = new WeakMap(); // conversation -> the question that is back in the field, and goes when another one is asked
  #settled = new WeakMap(); // conversation -> a promise that its last answer has ended, and left the tree where it is none
  #tasks;

  /**
   * @param {import("./answers.js").Answers} answers
   * @param {import("./tasks.js").Tasks} tasks
   * @param {import("./calls/tool_calls.js").ToolCalls} calls
   * @param {{shown: () => object|null, canGenerate: (isChat: boolean) => boolean, transport: (task: object) => object,
   *   library: Promise<import("../store/library.js").Library>, composer: () => import("./chat_composer.js").Composer,
   *   completion: () => import("./completion.js").Completion, log: () => import("./chat_log.js").ChatLog,
   *   render: (conversation: object) => void, save: (conversation: object, nodes: object[]) => Promise<void>,
   *   drop: (id: string) => void, router: import("../page/route.js").Router,
   *   drafts: import("../store/drafts.js").Drafts, changed: () => void}} deps
   */
  constructor(answers, tasks, calls, deps) {
    this.#answers = answers;
    this.#tasks = tasks;
    this.#calls = calls;
    this.#deps = deps;
  }

  /** Whether an answer can begin in a conversation now. */
  canBegin({ id, kind }) {
    return !this.#answers.isBusy(id) && this.#deps.canGenerate(kind === "chat");
  }

  /** Asks what is written in the field of the conversation that is shown. */
  async submit() {
    const conversation = this.#deps.shown();
    const refused = this.#refused.get(conversation);
    if (refused !== undefined && conversation.tree.get(refused) !== null) this.#deps.drop(refused);
    await this.ask(questionOf(conversation, this.#deps.composer().take()), conversation);
  }

  /** Asks the draft of a conversation that is not shown. */
  async submitDraft(conversation) {
    const { drafts } = this.#deps;
    const draft = drafts.get(conversation.id);
    if (draft === null || conversation.isGone || !this.#deps.canGenerate(true)) return;
    drafts.set(conversation.id, null);
    await this.ask(questionOf(conversation, { ...draft, content: draft.content.trim() }), conversation);
  }

  /** Adds a question to its conversation, and its answer. */
  async ask(node, conversation = this.#deps.shown()) {
    this.#begin(conversation, node);
    const { answer, outcome } = (await this.answer(conversation, node)) ?? {};
    if (outcome?.error == null || answer.events.length > 0) return;
    // Nothing typed is lost: the question is back in its field, or a draft of its conversation.
    if (conversation !== this.#deps.shown()) this.#deps.drafts.set(conversation.id, node);
    else if (this.#deps.composer().isEmpty) this.#deps.composer().put(node);
    else return;
    this.#refused.set(conversation, node.id);
  }

  /**
   * Takes over the messages of a prompt, up to the last one of the reader's.
   *
   * @param {{role: "user"|"assistant", text: string}[]} messages
   * @returns {string} the text that goes into the field
   */
  insert(conversation, messages) {
    const texts = (some) => some.map(({ text }) => text).join("\n\n");
    if (this.#answers.isBusy(conversation.id) || messages.every(({ role }) => role === "user")) return texts(messages);
    const last = messages.findLastIndex(({ role }) => role === "assistant") + 1;
    for (const { role, text } of messages.slice(0, last)) {
      const node = questionOf(conversation, { content: text, attachments: [] });
      this.#begin(conversation, role === "user" ? node : readNode({ ...node, role, finish: "edited", figures: [["given"]] }));
    }
    return texts(messages.slice(last));
  }

  /** Another answer in the place of one. */
  regenerate(node) {
    const conversation = this.#deps.shown();
    const parent = conversation.tree.get(node.parent);
    if (parent !== null) this.answer(conversation, parent);
  }

  /** Goes on where an answer ends. */
  continue(node) {
    const conversation = this.#deps.shown();
    if (!this.canBegin(conversation)) return;
    const task = this.#tasks.continuing(conversation, node);
    Object.assign(node, {
      finish: null, error: null, transport: this.#deps.transport(task).name, measured: continuedFrom(node),
    });
    this.#deps.log().viewOf(node)?.reopen();
    this.#answers.ask(conversation, node, task);
  }

  /** Goes on with a text; what stands before the end may have been changed, which begins a branch. */
  async complete(conversation, text) {
    if (!this.canBegin(conversation) || text.trim() === "") return;
    await this.#settled.get(conversation);
    if (!this.canBegin(conversation)) return;
    this.#deps.completion().forgetDraft();
    const path = conversation.tree.path();
    const written = textOf(path);
    let parent = path.at(-1) ?? null;
    if (parent === null || !text.startsWith(written) || text.length > written.length) {
      const isMore = parent !== null && text.startsWith(written);
      const content = isMore ? text.slice(written.length) : text;
      const node = { id: makeId(), parent: isMore ? parent.id : null, role: "user", content, created: Date.now(), attachments: [] };
      this.#begin(conversation, node);
      parent = node;
    }
    await this.answer(conversation, parent);
  }

  /** Asks for an answer to the path that ends with `parent`. */
  async answer(conversation, parent) {
    if (!this.canBegin(conversation)) return null;
    const answering = this.#answer(conversation, parent);
    this.#settled.set(conversation, answering);
    return answering;
  }

  async #answer(conversation, parent) {
    const task = this.#tasks.of(conversation, parent);
    const { messages: _, prompt: __, ...parameters } = task;
    const answer = makeAnswer({
      id: makeId(), parent: parent.id, model: parameters.model, parameters, transport: this.#deps.transport(task).name,
      created: Date.now(),
    });
    conversation.tree.add(answer);
    this.#deps.render(conversation);
    if (conversation === this.#deps.shown()) this.#deps.log().scrollToEnd();
    const outcome = await this.#answers.ask(conversation, answer, task, (own) => this.#calls.addTo(own, conversation, answer));
    if (conversation.kind === "completion" && outcome.error !== null && answer.content === "") {
      conversation.tree.remove(answer.id); // there is nothing to take back
      (await this.#deps.library).removeNodes(conversation, [answer]);
      if (conversation === this.#deps.shown()) this.#deps.completion().fail(outcome.error.message);
    }
    return { answer, outcome };
  }

  /** Adds what the reader wrote; the first message gives the conversation its address. */
  #begin(conversation, node) {
    const isFirst = conversation.tree.size === 0;
    conversation.tree.add(node);
    this.#deps.render(conversation);
    const saved = this.#deps.save(conversation, [node]);
    if (!isFirst) return;
    this.#deps.router.rename(addressOf(conversation.id));
    this.#deps.composer().open(conversation);
    saved.then(() => this.#deps.changed());
  }
}

function questionOf(conversation, { content, attachments }) {
  const parent = conversation.tree.path().at(-1)?.id ?? null;
  return { id: makeId(), parent, role: "user", content, created: Date.now(), attachments };
}
