/**
 * The chat: one conversation as a tree of messages (see `store/tree.js`), answered by the server.
 *
 * Other parts of the page may follow it: each change of an answer is told as an event `eagre-answer` of the document, with
 * `detail: {node, phase}`, where `phase` is "begin", "chunk" (at most once for each frame) or "end". `actions` are offered
 * below each answer, and `branch` writes another answer in the place of one.
 */

import { end, record } from "../answer/recorder.js";
import { Generation } from "../answer/generation.js";
import { Sentences, Speaker } from "../answer/sentences.js";
import { Follower, announce, byId, swapButtons } from "../page/dom.js";
import { messagesOf } from "../store/messages.js";
import { makeId, titleOf } from "../store/library.js";
import { makeAnswer } from "../store/tree.js";
import { Composer } from "./chat_composer.js";
import { MessageView, copyCodeOnClick } from "./chat_message.js";
import { ConversationList } from "./conversation_list.js";
import { WaitingLine } from "./waiting_line.js";

const OPEN_ID = "eagre.conversation"; // in the tab's own storage: a reload comes back to it
const SAVE_INTERVAL = 400; // milliseconds; more for an answer of many tokens

export class Chat {
  /** Further buttons below each answer, `{label, run(node)}`; add them before the first conversation is shown. */
  actions = [];
  #log = byId("chat-log");
  #welcome = byId("chat-welcome");
  #send = byId("chat-send");
  #stop = byId("chat-stop");
  #follower = new Follower(this.#log);
  #composer;
  #list;
  #library;
  #conversation = null;
  #views = []; // of the messages that are shown, from the top
  #refused = null; // the question that is back in the field, and goes when another one is asked
  #generation = null;
  #written = Promise.resolve(); // the answer that is being written has ended
  #deps;

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
    this.storage = storage;
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
    this.#stop.addEventListener("click", () => this.stop());
    byId("chat-new").addEventListener("click", () => this.create());
    byId("chat-list").addEventListener("click", () => this.#list.show());
    byId("system").addEventListener("change", () => this.#keepSystem());
    copyCodeOnClick(this.#log);
    for (const example of this.#welcome.querySelectorAll("button")) {
      example.addEventListener("click", () => {
        this.#composer.text = example.textContent;
        this.submit();
      });
    }
    this.ready = this.#begin();
  }

  get conversation() {
    return this.#conversation;
  }

  focus() {
    this.#composer.focus();
  }

  stop() {
    this.#generation?.stop();
  }

  showList() {
    return this.#list.show();
  }

  /** Begins a conversation; it is kept from its first message on. */
  async create() {
    await this.#finish();
    const library = await this.#library;
    this.#show(library.create(this.#deps.system()));
    announce("A new conversation.");
    this.focus();
  }

  /** Shows a conversation that is kept, and goes on with an answer that a reload has cut. */
  async open(id) {
    if (id === this.#conversation?.id) return;
    await this.#finish();
    const conversation = await (await this.#library).load(id);
    if (conversation === null) return;
    this.#deps.setSystem(conversation.system);
    this.#show(conversation);
    announce(`Conversation: ${titleOf(conversation)}`);
    await this.#resumeAll();
  }

  /** Sends what is written; does nothing when there is nothing to send or an answer is being written. */
  async submit() {
    await this.ready;
    if (this.#composer.isEmpty || this.#generation !== null || !this.#deps.canGenerate()) return;
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
    if (this.#generation !== null) return;
    const last = this.#views.findLast(({ node }) => node.role === "user");
    last?.element.querySelector("[data-action=edit]")?.click();
  }

  /** Another answer in the place of the last one. */
  regenerateLast() {
    const last = this.#views.at(-1)?.node;
    if (last?.role === "assistant") this.#regenerate(last);
  }

  /**
   * Writes another answer in the place of `node`: it begins with `content` and `events`, and what the task brings
   * follows. `task` is what is sent, as it is.
   */
  branch(node, { task, content = "", events = [] }) {
    if (this.#generation !== null || !this.#deps.canGenerate()) return null;
    const { messages: _, prompt: __, ...parameters } = task;
    const transport = this.#deps.transport(task);
    const answer = this.#add(makeAnswer({
      id: makeId(), parent: node.parent, model: task.model ?? node.model, parameters, transport: transport.name, created: Date.now(),
    }));
    Object.assign(answer, { content, events });
    this.#render();
    this.#run(answer, (signal) => transport.stream(task, { signal }));
    return answer;
  }

  async #finish() {
    this.stop();
    await this.#written;
  }

  async #begin() {
    const library = await this.#library;
    let id = null;
    try {
      id = this.storage().getItem(OPEN_ID);
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
    this.#resumeAll(); // nobody waits for these answers to be ready for the next one
  }

  async #resumeAll() {
    const { tree } = this.#conversation;
    for (const node of tree.nodes()) if (node.role === "assistant" && node.finish === null) await this.#resume(node);
  }

  #show(conversation) {
    this.#conversation = conversation;
    try {
      this.storage().setItem(OPEN_ID, conversation.id);
    } catch {
      // As above.
    }
    this.#log.replaceChildren(this.#welcome);
    this.#views = [];
    this.#render();
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#composer.recount();
  }

  /** Makes the log follow the path that is shown; messages that stay are not touched. */
  #render() {
    const path = this.#conversation.tree.path();
    this.#welcome.hidden = path.length > 0;
    let same = 0;
    while (same < path.length && this.#views[same]?.node === path[same]) same += 1;
    for (const view of this.#views.splice(same)) view.element.remove();
    for (const view of this.#views) view.showActions(); // a sibling may have come or gone
    for (const node of path.slice(same)) {
      const view = new MessageView(node, this.#viewDeps());
      this.#views.push(view);
      this.#log.append(view.element);
    }
    this.#showTitle();
  }

  #showTitle() {
    byId("chat-title").textContent = this.#conversation.tree.size === 0 ? "" : titleOf(this.#conversation);
  }

  #viewDeps() {
    return {
      siblings: (node) => this.#conversation.tree.siblings(node.id),
      show: (id) => this.#showBranch(id),
      edit: (node, text) => this.#edit(node, text),
      regenerate: (node) => this.#regenerate(node),
      continue: (node) => this.#continue(node),
      remove: (node) => this.#remove(node),
      answerCalls: (node, results) => this.#answerCalls(node, results),
      resultsOf: (node) => this.#conversation.tree.childrenOf(node.id).filter(({ role }) => role === "tool"),
      extra: this.actions,
    };
  }

  #showBranch(id) {
    this.#conversation.tree.show(id);
    this.#render();
    const siblings = this.#conversation.tree.siblings(id);
    announce(`Branch ${siblings.findIndex((node) => node.id === id) + 1} of ${siblings.length}`);
    this.#views.find(({ node }) => node.id === id)?.element.querySelector(".branches button:enabled")?.focus();
    this.#save();
  }

  #edit(node, text) {
    if (this.#generation !== null) return;
    if (node.role === "user") {
      this.#ask({ ...node, id: makeId(), content: text.trim(), created: Date.now() });
      return;
    }
    const { parent, model, parameters, transport, reasoning } = node;
    const edited = makeAnswer({ id: makeId(), parent, model, parameters, transport, created: Date.now() });
    this.#add(Object.assign(edited, { content: text, reasoning, finish: "edited", figures: ["edited"] }));
    this.#render();
    this.#save([edited]);
  }

  #regenerate(node) {
    const parent = this.#conversation.tree.get(node.parent);
    if (parent !== null) this.#answer(parent);
  }

  #remove(node) {
    if (this.#generation !== null) return;
    this.#drop(node.id);
    this.#save();
    announce("The message is deleted.");
  }

  #drop(id) {
    const conversation = this.#conversation;
    const gone = conversation.tree.remove(id);
    this.#render();
    this.#library.then((library) => library.removeNodes(conversation, gone));
  }

  async #answerCalls(node, results) {
    let parent = node.id;
    const nodes = results.map(({ id, content }) => {
      const tool = { id: makeId(), parent, role: "tool", content, created: Date.now(), toolCallId: id };
      parent = tool.id;
      return this.#add(tool);
    });
    this.#render();
    this.#save(nodes);
    await this.#answer(nodes.at(-1));
  }

  #add(node) {
    return this.#conversation.tree.add(node);
  }

  async #ask(node) {
    this.#add(node);
    this.#render();
    this.#save([node]);
    const { answer, outcome } = (await this.#answer(node)) ?? {};
    if (outcome?.error == null || answer.events.length > 0 || !this.#composer.isEmpty) return;
    this.#composer.put(node); // nothing typed is lost
    this.#refused = node.id;
  }

  /** Asks for an answer to the path that ends with `parent`. */
  async #answer(parent) {
    if (this.#generation !== null || !this.#deps.canGenerate()) return null;
    const { tree } = this.#conversation;
    const messages = messagesOf(this.#deps.system(), tree.pathTo(parent.id));
    const parameters = this.#deps.parameters();
    const task = { messages, ...parameters };
    const transport = this.#deps.transport(task);
    const answer = this.#add(makeAnswer({
      id: makeId(), parent: parent.id, model: parameters.model, parameters, transport: transport.name, created: Date.now(),
    }));
    this.#render();
    this.#log.scrollTop = this.#log.scrollHeight;
    const outcome = await this.#run(answer, (signal) => transport.stream(task, { signal }));
    return { answer, outcome };
  }

  /** Goes on with an answer that has an open end. */
  #continue(node) {
    if (this.#generation !== null || !this.#deps.canGenerate()) return;
    const messages = messagesOf(this.#deps.system(), this.#conversation.tree.pathTo(node.id));
    const task = { messages, ...this.#deps.parameters(), continue_final_message: true };
    delete task.tools;
    delete task.tool_choice;
    const transport = this.#deps.transport(task);
    Object.assign(node, { finish: null, error: null, transport: transport.name });
    this.#views.find((view) => view.node === node)?.reopen();
    this.#run(node, (signal) => transport.stream(task, { signal }));
  }

  /** Goes on with an answer whose page was loaded anew. */
  async #resume(node) {
    const transport = this.#deps.transportOf(node.transport);
    if (this.#generation !== null || node.stream === null || transport?.resume === undefined) {
      end(node, { finish: "cut", error: new Error("The page was closed before the answer had ended."), figures: node.figures });
      this.#views.find((view) => view.node === node)?.finish();
      await this.#save([node]);
      return;
    }
    const { stream } = node;
    await this.#run(node, (signal) => transport.resume(stream, { signal }));
  }

  #run(node, open) {
    const running = this.#write(node, open);
    this.#written = running;
    return running;
  }

  /** Reads an answer into its node, shows it, and keeps it. */
  async #write(node, open) {
    const conversation = this.#conversation;
    const viewOf = () => this.#views.find((view) => view.node === node);
    const base = node.events.at(-1)?.at ?? 0;
    const generation = new Generation();
    this.#generation = generation;
    this.#showBusy(true);
    const sentences = new Sentences();
    const speaker = new Speaker(announce);
    const waiting = new WaitingLine(this.#deps.fetch, (text) => viewOf()?.setWaiting(text));
    const saver = new Saver(this.#library, conversation, node);
    let frame = null;
    tell(node, "begin");
    waiting.start();
    this.#save([node]);
    const outcome = await generation.run(open, {
      onChunk: (chunk, at) => {
        record(node, chunk, base + at);
        if (chunk.isWaiting) waiting.start("The connection was lost; coming back…");
        else if (chunk.text !== "" || chunk.reasoning !== "" || chunk.toolCalls !== null) waiting.stop();
        speaker.tell(sentences.feed(chunk.text));
        saver.changed();
        frame ??= requestAnimationFrame(() => {
          frame = null;
          this.#follower.around(() => viewOf()?.refresh());
          tell(node, "chunk");
        });
      },
      onFigures: (figures) => {
        node.figures = figures;
      },
    });
    if (frame !== null) cancelAnimationFrame(frame);
    waiting.stop();
    this.#generation = null;
    // A stream that is still held somewhere is not lost for good; but nobody will ask for it again.
    end(node, { ...outcome, figures: node.figures });
    this.#follower.around(() => viewOf()?.finish());
    this.#showBusy(false);
    await saver.end();
    if (conversation === this.#conversation) {
      this.#showUsage(node);
      speaker.tell(sentences.end());
    }
    tell(node, "end");
    if (outcome.error !== null) this.#deps.onError(outcome.error);
    return outcome;
  }

  #showUsage({ usage }) {
    const limit = this.#deps.model()?.max_model_len;
    if (usage?.total_tokens && limit) this.#composer.showContext({ used: usage.total_tokens, limit });
  }

  /** How many tokens the next request would have, by the server's own tokenizer. */
  async #count(content, attachments) {
    const model = this.#deps.model();
    if (this.#generation !== null || this.#conversation === null || !model?.max_model_len) return null;
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

  #showBusy(isBusy) {
    if (isBusy) swapButtons(this.#send, this.#stop);
    else swapButtons(this.#stop, this.#send);
    this.#log.classList.toggle("writing", isBusy);
  }
}

/** Keeps a node while it grows, so that a reload finds it with the place of its stream. */
class Saver {
  #library;
  #conversation;
  #node;
  #timer = null;
  #isSaving = Promise.resolve();

  constructor(library, conversation, node) {
    this.#library = library;
    this.#conversation = conversation;
    this.#node = node;
  }

  changed() {
    const delay = this.#node.events.length < 2 ? 0 : Math.max(SAVE_INTERVAL, this.#node.events.length);
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#save((library) => library.saveNode(this.#conversation, this.#node));
    }, delay);
  }

  end() {
    clearTimeout(this.#timer);
    return this.#save((library) => library.save(this.#conversation, [this.#node]));
  }

  #save(write) {
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

function tell(node, phase) {
  document.dispatchEvent(new CustomEvent("eagre-answer", { detail: { node, phase } }));
}
