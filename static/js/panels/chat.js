/**
 * The conversation that is shown: a tree of messages (see `store/tree.js`), as a chat or as a text that is completed.
 * Answers of conversations that are not shown go on (see `answers.js`).
 */

import { announce, byId, swapButtons } from "../page/dom.js";
import { NEW, addressOf } from "../page/route.js";
import { modelNameOf, titleOf } from "../store/library.js";
import { picturesOf, sentOf, shorterFrom } from "../store/messages.js";
import { seesPictures } from "../transport/server_state.js";
import { words } from "../words/words.js";
import { Answers } from "./answers.js";
import { Composer } from "./chat_composer.js";
import { ChatLog } from "./chat_log.js";
import { Completion } from "./completion.js";
import { ConversationTools } from "./calls/conversation_tools.js";
import { Edits } from "./edits.js";
import { ShownAnswer } from "./shown_answer.js";
import { Tasks } from "./tasks.js";
import { ToolCalls } from "./calls/tool_calls.js";
import { ToolPicker } from "./calls/tool_picker.js";
import { Turns } from "./turns.js";

export class Chat {
  answers;
  ready; // resolves with the first conversation that is shown
  #answer;
  #calls;
  #composer;
  #completion;
  #conversation = null;
  #deps;
  #edits;
  #library;
  #log;
  #isReady;
  #picker;
  #tasks;
  #tools;
  #ticket = 0; // of the conversation that was asked for last
  #turns;
  #urgent = new WeakSet(); // conversations whose answer is interrupted by the next message

  /**
   * @param {{transport: (task: object) => object, transportOf: (name: string) => object,
   *   parameters: (model: object|null) => object, sampling: (model: object|null) => object, system: () => string,
   *   setSystem: (text: string) => void, modelOf: (conversation: object) => object|null, use: (conversation: object) => void, fetch: typeof fetch, canGenerate: (isChat: boolean) => boolean, onError: (error: Error) => void, onLost: () => void,
   *   router: import("../page/route.js").Router, toast: import("../page/toast.js").Toast,
   *   drafts: import("../store/drafts.js").Drafts, inspect: (node: object|null, isAsked: boolean) => void,
   *   filesChanged: () => void,
   *   changed: () => void}} deps `modelOf` is the entry of the model that goes
   *   on with a conversation, `use` makes it the one that the page shows, `changed` hears of every change that the list of
   *   conversations shows
   * @param {Promise<import("../store/library.js").Library>} library
   * @param {() => Storage} storage the tab's own
   */
  constructor(deps, library, storage) {
    this.#deps = deps;
    this.#library = library;
    this.ready = new Promise((resolve) => (this.#isReady = resolve));
    this.answers = new Answers(deps, library, storage, {
      began: (conversation, node) => this.#began(conversation, node),
      grew: (...grown) => this.#answer.grew(...grown),
      waits: (...waiting) => this.#answer.waits(...waiting),
      ended: (conversation, node, outcome) => this.#ended(conversation, node, outcome),
    });
    const system = (conversation) => (conversation === this.#conversation ? deps.system() : conversation.system);
    this.#tasks = new Tasks({ ...deps, system });
    this.#tools = new ConversationTools(deps.fetch);
    this.#edits = new Edits(library, {
      shown: () => this.#conversation,
      isBusy: () => this.isBusy,
      render: () => this.#render(),
      save: (conversation, nodes) => this.#save(conversation, nodes),
      ask: (node) => this.#turns.ask(node),
      recount: () => this.#composer.recount(),
      changed: deps.changed,
      toast: deps.toast,
    });
    this.#calls = new ToolCalls(this.#tools, {
      shown: () => this.#conversation,
      added: (conversation, nodes) => {
        this.#renderOf(conversation);
        this.#save(conversation, nodes);
      },
      offered: (node) => this.#log.viewOf(node)?.finish(),
      answer: (conversation, parent) => this.#turns.answer(conversation, parent),
      save: (conversation) => this.#save(conversation),
      toast: deps.toast,
    });
    const parts = {
      shown: () => this.#conversation,
      composer: () => this.#composer,
      completion: () => this.#completion,
      log: () => this.#log,
    };
    this.#answer = new ShownAnswer({ ...parts, modelOf: deps.modelOf });
    this.#turns = new Turns(this.answers, this.#tasks, this.#calls, {
      ...deps,
      ...parts,
      library,
      render: (conversation) => this.#renderOf(conversation),
      save: (conversation, nodes) => this.#save(conversation, nodes),
      drop: (id) => this.#edits.drop(id),
    });
    this.#picker = new ToolPicker(this.#tools, {
      changed: (conversation) => {
        this.#save(conversation);
        this.#composer.recount();
      },
      lost: () => this.#lost(),
      attach: (files) => this.#composer.attach(files),
      insert: (messages, files) => {
        this.#composer.insert(this.#turns.insert(this.#conversation, messages));
        this.#composer.attach(files);
      },
    });
    this.#log = new ChatLog(this.#messageActions(), (text) => {
      this.#composer.text = text;
      this.submit();
    });
    this.#composer = new Composer({
      submit: () => this.submit(),
      interrupt: () => this.#interrupt(),
      editLast: () => this.editLast(),
      count: (content, attachments) => this.#count(content, attachments),
      drafts: deps.drafts,
      seesPictures: () => seesPictures(this.#model),
      filesChanged: deps.filesChanged,
      shorten: () => this.shorten(),
      create: () => deps.router.go(NEW.chat),
      place: () => this.#goToComposer(),
    });
    this.#completion = new Completion({
      drafts: deps.drafts,
      submit: (text) => this.ready.then(() => this.#turns.complete(this.#conversation, text)),
      regenerate: (node) => this.#turns.regenerate(node),
      takeBack: (node) => this.#edits.takeBack(node),
      show: (id) => this.#edits.showBranch(id),
      inspect: (node) => deps.inspect(node, true),
    });
    byId("chat-stop").addEventListener("click", () => this.stop());
    byId("story-stop").addEventListener("click", () => this.stop());
    byId("system").addEventListener("change", () => this.#keepSystem());
  }

  get conversation() {
    return this.#conversation;
  }

  get isBusy() {
    return this.#conversation !== null && this.answers.isBusy(this.#conversation.id);
  }

  /** What keeps the message from being sent: pictures for a model that does not see. @returns {{text: string, show: () => void}|null} */
  get problem() {
    const model = this.#model;
    const { pictures } = this.#composer;
    if (pictures.length === 0 || seesPictures(model)) return null;
    const names = pictures.map(({ name }) => name).join(", ");
    return { text: words.attachments.unseen(names, model.id), show: () => this.#composer.focusPicture() };
  }

  /** Says that the model gets notes in the place of earlier pictures, where it does not see. */
  showSight() {
    const model = this.#model;
    const isChat = this.#conversation !== null && !this.#isCompletion;
    const pictures = isChat ? picturesOf(sentOf(this.#conversation.tree.path(), this.#conversation.sentFrom)) : [];
    const text = pictures.length === 0 || seesPictures(model) ? "" : words.attachments.unseenBefore(model.id);
    const line = byId("chat-unseen");
    if (line.textContent !== text) line.textContent = text; // it is read out once
    line.hidden = text === "";
    this.#showModel();
  }

  /** The reader has chosen who answers: in this conversation, whatever is chosen elsewhere later. */
  chooseModel(name) {
    const conversation = this.#conversation;
    if (conversation === null) return;
    if (conversation.tree.size > 0) {
      conversation.model = name;
      this.#save(conversation);
    }
    this.#deps.use(conversation);
    this.#composer.recount();
  }

  focus() {
    (this.#isCompletion ? this.#completion : this.#composer).focus();
  }

  stop() {
    if (this.#conversation === null) return;
    this.answers.stop(this.#conversation.id);
    this.#tools.stop(this.#conversation);
  }

  /** Begins a conversation; it is kept from its first message on. */
  async create(kind) {
    const ticket = (this.#ticket += 1);
    if (this.#conversation?.tree.size === 0 && this.#conversation.kind === kind) return;
    const library = await this.#library;
    if (ticket === this.#ticket) this.#show(library.create(this.#deps.system(), kind));
  }

  /** Begins a conversation with these nodes, each the child of the one before it. */
  async adopt(system, nodes, kind = "chat") {
    this.#ticket += 1;
    const conversation = (await this.#library).create(system, kind);
    for (const node of nodes) conversation.tree.add(node);
    await this.#save(conversation, nodes);
    this.#deps.router.go(addressOf(conversation.id));
  }

  /** Shows a conversation that is kept, and goes on with an answer that was cut. @returns {Promise<boolean>} whether there is one */
  async open(id) {
    const ticket = (this.#ticket += 1);
    if (id === this.#conversation?.id) return true;
    const conversation = await this.answers.load(id);
    if (ticket !== this.#ticket) return true; // another one was asked for meanwhile
    if (conversation === null) return false;
    // One that was deleted while it answered may be back: else nothing of it would be kept any more.
    if (conversation.isGone && (await (await this.#library).load(id)) !== null) delete conversation.isGone;
    if (ticket !== this.#ticket) return true;
    this.#show(conversation);
    announce(words.chat.opened(titleOf(conversation)));
    this.#calls.offer(conversation);
    this.answers.resume(conversation); // nobody waits for these answers to be ready for the next one
    return true;
  }

  /** Sends what is written, once the answer that is being written has ended; does nothing when there is nothing to send. */
  async submit() {
    await this.ready;
    const conversation = this.#conversation;
    if (this.#composer.isEmpty || this.#composer.isFull || this.problem !== null) return;
    this.#composer.setNext(conversation, this.isBusy);
    if (this.#turns.canBegin(conversation)) await this.#turns.submit();
  }

  editSystem() {
    byId("system").focus();
  }

  /** Opens the last question for editing. */
  editLast() {
    if (!this.isBusy) this.#log.last("user")?.element.querySelector("[data-action=edit]")?.click();
  }

  /** Another answer instead of the last one. */
  regenerateLast() {
    const last = this.#conversation?.tree.path().at(-1);
    if (last?.role === "assistant") this.#turns.regenerate(last);
  }

  /** The last answer that is shown, or null. */
  lastAnswer() {
    return this.#conversation?.tree.path().findLast(({ role }) => role === "assistant") ?? null;
  }

  /** The task of an answer of the conversation that is shown; null where it is not known. */
  asked(node) {
    const conversation = this.#conversation;
    return conversation?.tree.get(node.id) === node ? this.#tasks.asked(conversation, node) : null;
  }

  /** Makes a branch of an answer another answer in its place. */
  keepBranch(node, kept) {
    this.#edits.keepBranch(node, kept);
  }

  scrollToEnd() {
    this.#log.scrollToEnd();
  }

  /** Leaves out the oldest messages, so that the context has room again. */
  shorten() {
    const conversation = this.#conversation;
    if (conversation === null || this.isBusy) return;
    conversation.sentFrom = shorterFrom(conversation.tree.path(), conversation.sentFrom);
    this.#log.sentFrom = conversation.sentFrom;
    this.showSight();
    this.#save(conversation);
    this.#composer.recount();
    announce(words.chat.shortened);
  }

  /** The title of a conversation was changed in the list. */
  async renamed(id, title) {
    const conversation = await this.#loaded(id);
    if (conversation === null) return;
    conversation.title = title;
    if (conversation === this.#conversation) this.#showTitle();
  }

  /** A conversation was deleted; its answer ends, and one that is shown makes room for a new one. */
  async removed(id) {
    const conversation = await this.#loaded(id);
    await this.answers.finish(id);
    if (conversation === null) return;
    conversation.isGone = true;
    if (conversation === this.#conversation) this.#deps.router.go(NEW.chat);
  }

  /** Files are given to the page: they go into the message of the chat that is shown, or of a new one. */
  async #goToComposer() {
    if (this.#isCompletion) {
      await this.create("chat");
      this.#deps.router.go(NEW.chat);
    } else if (document.body.dataset.mode !== "chat") {
      byId("tab-chat").click();
    }
  }

  /** The model that goes on with the conversation that is shown. */
  get #model() {
    return this.#deps.modelOf(this.#conversation);
  }

  /** Says that the model of the conversation is not here any more, and which one answers in its place. */
  #showModel() {
    const model = this.#model;
    const name = this.#conversation === null ? null : modelNameOf(this.#conversation);
    const isGone = name !== null && model !== null && model.id !== name;
    const line = byId("chat-other-model");
    const text = isGone ? words.chat.otherModel(name, model.id) : "";
    if (line.textContent !== text) line.textContent = text;
    line.hidden = !isGone;
  }

  get #isCompletion() {
    return this.#conversation?.kind === "completion";
  }

  /** The conversation in memory: the one that is shown, or one that is being written to. */
  async #loaded(id) {
    if (id === this.#conversation?.id) return this.#conversation;
    return this.answers.isBusy(id) ? this.answers.load(id) : null;
  }

  #show(conversation) {
    this.#conversation = conversation;
    this.#answer.forget();
    this.#deps.setSystem(conversation.system);
    byId("chat").dataset.kind = conversation.kind;
    this.#log.clear();
    this.#log.sentFrom = conversation.sentFrom;
    this.#composer.open(conversation);
    this.#completion.open(conversation);
    this.#picker.show(conversation);
    this.#render();
    this.#showBusy();
    const waiting = this.answers.waitingIn(conversation.id);
    if (waiting !== "") this.#answer.waits(conversation, conversation.tree.path().at(-1), waiting);
    this.#log.scrollToEnd();
    this.#composer.recount();
    this.#see(conversation);
    this.#deps.inspect(this.lastAnswer(), false);
    this.#isReady();
  }

  /** What had ended unseen is seen now. */
  #see(conversation) {
    if (conversation.state === "") return this.#deps.changed();
    conversation.state = "";
    return this.#library.then((library) => library.mark(conversation.id, "")).then(() => this.#deps.changed());
  }

  /** Makes what is shown follow the path. */
  #render() {
    const path = this.#conversation.tree.path();
    if (this.#isCompletion) this.#completion.show(path);
    else this.#log.show(path);
    this.#showTitle();
    this.#deps.use(this.#conversation);
    this.showSight();
  }

  #renderOf(conversation) {
    if (conversation === this.#conversation) this.#render();
  }

  #showTitle() {
    const title = this.#conversation.tree.size === 0 ? "" : titleOf(this.#conversation);
    byId("chat-title").textContent = title;
    document.title = title === "" ? "Eagre" : `${title} – Eagre`;
  }

  #showBusy() {
    const { isBusy } = this;
    for (const [go, stop] of [["chat-send", "chat-stop"], ["story-continue", "story-stop"]]) {
      if (isBusy) swapButtons(byId(go), byId(stop));
      else swapButtons(byId(stop), byId(go));
    }
    this.#log.isBusy = isBusy;
    this.#composer.isBusy = isBusy;
    this.#completion.isBusy = isBusy;
  }

  #messageActions() {
    return {
      siblings: (node) => this.#conversation.tree.siblings(node.id),
      show: (id) => {
        this.#edits.showBranch(id);
        this.#log.viewOf(this.#conversation.tree.get(id))?.element.querySelector(".branches button:enabled")?.focus();
      },
      edit: (node, text) => this.#edits.edit(node, text),
      regenerate: (node) => this.#turns.regenerate(node),
      continue: (node) => this.#turns.continue(node),
      remove: (node) => this.#edits.remove(node),
      inspect: (node) => this.#deps.inspect(node, true),
      fork: (node) => this.#fork(node),
      shorten: () => this.shorten(),
      create: () => this.#deps.router.go(NEW.chat),
      lost: () => this.#lost(),
      ...this.#calls.actions,
    };
  }

  #began(conversation) {
    if (conversation === this.#conversation) this.#showBusy();
    this.#deps.changed();
  }

  #ended(conversation, node, outcome) {
    this.#answer.ended(conversation, node);
    if (conversation === this.#conversation) this.#showBusy();
    const isSeen = conversation === this.#conversation && document.body.dataset.mode === "chat";
    if (!isSeen) conversation.state = outcome.error === null ? "new" : "failed";
    this.#deps.changed();
    if (node.finish === "tool_calls") this.#calls.run(conversation, node);
    else this.#sendNext(conversation, outcome);
  }

  /** Begins another conversation with what leads to a message. */
  async #fork(node) {
    const copy = await (await this.#library).copy(this.#conversation, node.id);
    this.#deps.router.go(addressOf(copy.id));
  }

  #lost() {
    this.#deps.toast.show(words.engine.loadFailed);
  }

  /** Sends the message that has waited for an answer to end: not after an error, nor where the reader only stopped it. */
  #sendNext(conversation, { error, finish }) {
    const isUrgent = this.#urgent.delete(conversation);
    if (!this.#composer.setNext(conversation, false) || (!isUrgent && (error !== null || finish === "abort"))) return;
    if (conversation === this.#conversation) this.submit();
    else this.#turns.submitDraft(conversation);
  }

  /** Ends the answer that is being written, and sends the message that waits for its end. */
  #interrupt() {
    if (!this.isBusy) return;
    this.#urgent.add(this.#conversation);
    this.stop();
  }

  async #count(content, attachments) {
    const conversation = this.#conversation;
    if (this.isBusy || conversation === null) return null;
    const counted = await this.#tasks.count(conversation, content, attachments);
    return conversation === this.#conversation ? counted : null;
  }

  #keepSystem() {
    if (this.#conversation === null) return;
    this.#conversation.system = this.#deps.system();
    this.#save(this.#conversation);
    this.#composer.recount();
  }

  /** Keeps the conversation with these nodes; one without a message is not worth keeping. */
  async #save(conversation, nodes = []) {
    if (conversation.tree.size === 0 || conversation.isGone) return;
    if (conversation === this.#conversation) conversation.system = this.#deps.system();
    try {
      await (await this.#library).save(conversation, nodes);
    } catch (error) {
      console.info(`The conversation cannot be kept: ${error}`);
    }
  }
}
