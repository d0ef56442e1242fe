/**
 * The chat: one conversation as a tree of messages (see `store/tree.js`), answered by the server. `actions` are offered
 * below each answer.
 */

import { announce, byId } from "../page/dom.js";
import { messagesOf } from "../store/messages.js";
import { makeId, titleOf } from "../store/library.js";
import { makeAnswer } from "../store/tree.js";
import { ChatAnswers } from "./chat_answers.js";
import { Composer } from "./chat_composer.js";
import { ChatLog } from "./chat_log.js";
import { ConversationList } from "./conversation_list.js";

const OPEN_ID = "eagre.conversation"; // in the tab's own storage: a reload comes back to it

export class Chat {
  /** Further buttons below each answer, `{label, run(node)}`; add them before the first conversation is shown. */
  actions = [];
  #answers;
  #composer;
  #conversation = null;
  #deps;
  #library;
  #list;
  #log;
  #refused = null; // the question that is back in the field, and goes when another one is asked
  #storage;

  /**
   * @param {{transport: (task: object) => object, transportOf: (name: string) => object, parameters: () => object,
   *   system: () => string, setSystem: (text: string) => void, model: () => object|null, fetch: typeof fetch,
   *   canGenerate: () => boolean, onError: (error: Error) => void}} deps a transport has a `name`
   * @param {Promise<import("../store/library.js").Library>} library
   * @param {() => Storage} storage the tab's own
   */
  constructor(deps, library, storage) {
    this.#deps = deps;
    this.#library = library;
    this.#storage = storage;
    this.#log = new ChatLog(this.#messageActions(), (text) => {
      this.#composer.text = text;
      this.submit();
    });
    this.#answers = new ChatAnswers(this, deps, this.#log, library);
    this.#composer = new Composer({
      submit: () => this.submit(),
      editLast: () => this.editLast(),
      count: (content, attachments) => this.#count(content, attachments),
    });
    this.#list = new ConversationList(library, {
      openId: () => this.#conversation?.id,
      open: (id) => this.open(id),
      create: () => this.create(),
      removed: (id) => {
        if (id !== this.#conversation?.id) return;
        this.#conversation.isGone = true;
        this.create();
      },
      renamed: (id, title) => {
        if (id !== this.#conversation?.id) return;
        this.#conversation.title = title;
        this.#showTitle();
      },
    });
    byId("chat-stop").addEventListener("click", () => this.stop());
    byId("chat-new").addEventListener("click", () => this.create());
    byId("chat-list").addEventListener("click", () => this.#list.show());
    byId("system").addEventListener("change", () => this.#keepSystem());
    this.ready = this.#begin();
  }

  get conversation() {
    return this.#conversation;
  }

  focus() {
    this.#composer.focus();
  }

  stop() {
    this.#answers.stop();
  }

  showList() {
    return this.#list.show();
  }

  /** Begins a conversation; it is kept from its first message on. */
  async create() {
    await this.#answers.finish();
    const library = await this.#library;
    this.#show(library.create(this.#deps.system()));
    announce("A new conversation.");
    this.focus();
  }

  /** Begins a conversation with these nodes, each the child of the one before it. */
  async adopt(system, nodes) {
    await this.ready;
    this.#deps.setSystem(system);
    await this.create();
    for (const node of nodes) this.#conversation.tree.add(node);
    this.render();
    this.#log.scrollToEnd();
    await this.#save(nodes);
  }

  /** Shows a conversation that is kept, and goes on with an answer that a reload has cut. */
  async open(id) {
    if (id === this.#conversation?.id) return;
    await this.#answers.finish();
    const conversation = await (await this.#library).load(id);
    if (conversation === null) return;
    this.#deps.setSystem(conversation.system);
    this.#show(conversation);
    announce(`Conversation: ${titleOf(conversation)}`);
    await this.#answers.resumeAll();
  }

  /** Sends what is written; does nothing when there is nothing to send or an answer is being written. */
  async submit() {
    await this.ready;
    if (this.#composer.isEmpty || !this.#answers.canBegin) return;
    const { tree } = this.#conversation;
    if (this.#refused !== null && tree.get(this.#refused) !== null) this.#drop(this.#refused);
    const { content, attachments } = this.#composer.take();
    const node = { id: makeId(), parent: tree.path().at(-1)?.id ?? null, role: "user", content, created: Date.now(), attachments };
    await this.#ask(node);
  }

  editSystem() {
    byId("system").closest("details").open = true;
    byId("system").focus();
  }

  /** Opens the last question for editing. */
  editLast() {
    if (!this.#answers.isBusy) this.#log.last("user")?.element.querySelector("[data-action=edit]")?.click();
  }

  /** Another answer in the place of the last one. */
  regenerateLast() {
    const last = this.#log.last()?.node;
    if (last?.role === "assistant") this.#regenerate(last);
  }

  /** Makes the log follow the path that is shown. */
  render() {
    this.#log.show(this.#conversation.tree.path());
    this.#showTitle();
  }

  showUsage({ usage }) {
    const limit = this.#deps.model()?.max_model_len;
    if (usage?.total_tokens && limit) this.#composer.showContext({ used: usage.total_tokens, limit });
  }

  async #begin() {
    const library = await this.#library;
    let id = null;
    try {
      id = this.#storage().getItem(OPEN_ID);
    } catch {
      // Without a storage, a reload begins anew.
    }
    const conversation = id === null ? null : await library.load(id);
    if (conversation === null) {
      this.#show(library.create(this.#deps.system()));
      return;
    }
    this.#deps.setSystem(conversation.system);
    this.#show(conversation);
    this.#answers.resumeAll(); // nobody waits for these answers to be ready for the next one
  }

  #show(conversation) {
    this.#conversation = conversation;
    try {
      this.#storage().setItem(OPEN_ID, conversation.id);
    } catch {
      // As above.
    }
    this.#log.clear();
    this.render();
    this.#log.scrollToEnd();
    this.#composer.recount();
  }

  #showTitle() {
    byId("chat-title").textContent = this.#conversation.tree.size === 0 ? "" : titleOf(this.#conversation);
  }

  #messageActions() {
    return {
      siblings: (node) => this.#conversation.tree.siblings(node.id),
      show: (id) => this.#showBranch(id),
      edit: (node, text) => this.#edit(node, text),
      regenerate: (node) => this.#regenerate(node),
      continue: (node) => this.#answers.continue(node),
      remove: (node) => this.#remove(node),
      answerCalls: (node, results) => this.#answerCalls(node, results),
      resultsOf: (node) => this.#conversation.tree.childrenOf(node.id).filter(({ role }) => role === "tool"),
      extra: this.actions,
    };
  }

  #showBranch(id) {
    const { tree } = this.#conversation;
    tree.show(id);
    this.render();
    const siblings = tree.siblings(id);
    announce(`Branch ${siblings.findIndex((node) => node.id === id) + 1} of ${siblings.length}`);
    this.#log.viewOf(tree.get(id))?.element.querySelector(".branches button:enabled")?.focus();
    this.#save();
  }

  #edit(node, text) {
    if (this.#answers.isBusy) return;
    if (node.role === "user") {
      this.#ask({ ...node, id: makeId(), content: text.trim(), created: Date.now() });
      return;
    }
    const { parent, model, parameters, transport, reasoning } = node;
    const edited = makeAnswer({ id: makeId(), parent, model, parameters, transport, created: Date.now() });
    this.#add(Object.assign(edited, { content: text, reasoning, finish: "edited", figures: ["edited"] }));
    this.render();
    this.#save([edited]);
  }

  #regenerate(node) {
    const parent = this.#conversation.tree.get(node.parent);
    if (parent !== null) this.#answers.answer(parent);
  }

  #remove(node) {
    if (this.#answers.isBusy) return;
    this.#drop(node.id);
    this.#save();
    announce("The message is deleted.");
  }

  #drop(id) {
    const conversation = this.#conversation;
    const gone = conversation.tree.remove(id);
    this.render();
    this.#library.then((library) => library.removeNodes(conversation, gone));
  }

  async #answerCalls(node, results) {
    let parent = node.id;
    const nodes = results.map(({ id, content }) => {
      const tool = { id: makeId(), parent, role: "tool", content, created: Date.now(), toolCallId: id };
      parent = tool.id;
      return this.#add(tool);
    });
    this.render();
    this.#save(nodes);
    await this.#answers.answer(nodes.at(-1));
  }

  #add(node) {
    return this.#conversation.tree.add(node);
  }

  async #ask(node) {
    this.#add(node);
    this.render();
    this.#save([node]);
    const { answer, outcome } = (await this.#answers.answer(node)) ?? {};
    if (outcome?.error == null || answer.events.length > 0 || !this.#composer.isEmpty) return;
    this.#composer.put(node); // nothing typed is lost
    this.#refused = node.id;
  }

  /** How many tokens the next request would have, by the server's own tokenizer. */
  async #count(content, attachments) {
    const model = this.#deps.model();
    if (this.#answers.isBusy || this.#conversation === null || !model?.max_model_len) return null;
    const path = this.#conversation.tree.path();
    if (content !== "" || attachments.length > 0) path.push({ role: "user", content, attachments });
    const messages = messagesOf(this.#deps.system(), path);
    if (messages.length === 0) return { used: 0, limit: model.max_model_len };
    const { tools } = this.#deps.parameters();
    try {
      const response = await this.#deps.fetch("/tokenize", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ model: model.id, messages, ...(tools ? { tools } : {}) }),
      });
      if (!response.ok) return null;
      return { used: (await response.json()).count, limit: model.max_model_len };
    } catch {
      return null; // the gauge keeps what it shows
    }
  }

  #keepSystem() {
    if (this.#conversation === null) return;
    this.#conversation.system = this.#deps.system();
    this.#save();
    this.#composer.recount();
  }

  /** Keeps the conversation with these nodes; one without a message is not worth keeping. */
  async #save(nodes = []) {
    const conversation = this.#conversation;
    if (conversation.tree.size === 0) return;
    conversation.system = this.#deps.system();
    try {
      await (await this.#library).save(conversation, nodes);
    } catch (error) {
      console.info(`The conversation cannot be kept: ${error}`);
    }
  }
}
