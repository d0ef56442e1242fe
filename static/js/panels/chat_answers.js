/** The answers of a chat: each is asked for, read into its node of the tree, shown and kept. One is written at a time. */

import { end, record } from "../answer/recorder.js";
import { Generation } from "../answer/generation.js";
import { Sentences, Speaker } from "../answer/sentences.js";
import { announce, byId, swapButtons } from "../page/dom.js";
import { makeId } from "../store/library.js";
import { messagesOf } from "../store/messages.js";
import { makeAnswer } from "../store/tree.js";
import { AnswerSaver } from "./answer_saver.js";

export class ChatAnswers {
  #chat;
  #deps;
  #log;
  #library;
  #generation = null;
  #written = Promise.resolve();

  /**
   * @param {{conversation: object, render: () => void, showUsage: (node: object) => void}} chat
   * @param {object} deps of the chat
   * @param {import("./chat_log.js").ChatLog} log
   * @param {Promise<import("../store/library.js").Library>} library
   */
  constructor(chat, deps, log, library) {
    this.#chat = chat;
    this.#deps = deps;
    this.#log = log;
    this.#library = library;
  }

  get isBusy() {
    return this.#generation !== null;
  }

  get canBegin() {
    return !this.isBusy && this.#deps.canGenerate();
  }

  stop() {
    this.#generation?.stop();
  }

  /** Ends the answer that is being written, and waits until it is kept. */
  async finish() {
    this.stop();
    await this.#written;
  }

  /** Asks for an answer to the path that ends with `parent`. */
  async answer(parent) {
    if (!this.canBegin) return null;
    const messages = messagesOf(this.#deps.system(), this.#chat.conversation.tree.pathTo(parent.id));
    const parameters = this.#deps.parameters();
    const task = { messages, ...parameters };
    const transport = this.#deps.transport(task).name;
    const answer = makeAnswer({
      id: makeId(), parent: parent.id, model: parameters.model, parameters, transport, created: Date.now(),
    });
    this.#chat.conversation.tree.add(answer);
    this.#chat.render();
    this.#log.scrollToEnd();
    return { answer, outcome: await this.#stream(answer, task) };
  }

  /** Goes on with an answer that has an open end. */
  continue(node) {
    if (!this.canBegin) return;
    const messages = messagesOf(this.#deps.system(), this.#chat.conversation.tree.pathTo(node.id));
    const task = { messages, ...this.#deps.parameters(), continue_final_message: true };
    delete task.tools;
    delete task.tool_choice;
    Object.assign(node, { finish: null, error: null, transport: this.#deps.transport(task).name });
    this.#log.viewOf(node)?.reopen();
    this.#stream(node, task);
  }

  /** Goes on with the answers whose page was loaded anew. */
  async resumeAll() {
    for (const node of this.#chat.conversation.tree.nodes()) {
      if (node.role === "assistant" && node.finish === null) await this.#resume(node);
    }
  }

  async #resume(node) {
    const transport = this.#deps.transportOf(node.transport);
    const { stream } = node;
    if (!this.isBusy && stream !== null && transport?.resume !== undefined) {
      await this.#run(node, (signal) => transport.resume(stream, { signal }));
      return;
    }
    end(node, { finish: "cut", error: new Error("The page was closed before the answer had ended."), figures: node.figures });
    this.#log.viewOf(node)?.finish();
    await new AnswerSaver(this.#library, this.#chat.conversation, node).save();
  }

  #stream(node, task) {
    const transport = this.#deps.transportOf(node.transport);
    return this.#run(node, (signal) => transport.stream(task, { signal }));
  }

  #run(node, open) {
    const running = this.#write(node, open);
    this.#written = running;
    return running;
  }

  /** Reads an answer into its node, shows it, and keeps it. */
  async #write(node, open) {
    const { conversation } = this.#chat;
    const base = node.events.findLast(({ at }) => at !== null)?.at ?? 0;
    const generation = new Generation(node);
    this.#generation = generation;
    this.#showBusy(true);
    const sentences = new Sentences();
    const speaker = new Speaker(announce);
    const saver = new AnswerSaver(this.#library, conversation, node);
    let frame = null;
    saver.save();
    const outcome = await generation.run(open, {
      onChunk: (chunk, at) => {
        record(node, chunk, base + at);
        speaker.tell(sentences.feed(chunk.text));
        saver.changed();
        frame ??= requestAnimationFrame(() => {
          frame = null;
          this.#log.around(() => this.#log.viewOf(node)?.refresh());
        });
      },
      onFigures: (figures) => {
        node.figures = figures;
      },
      onWaiting: (text) => this.#log.viewOf(node)?.setWaiting(text),
    });
    if (frame !== null) cancelAnimationFrame(frame);
    this.#generation = null;
    // A stream that is still held somewhere is not lost for good; but nobody will ask for it again.
    end(node, { ...outcome, figures: node.figures });
    this.#log.around(() => this.#log.viewOf(node)?.finish());
    this.#showBusy(false);
    await saver.save();
    if (conversation === this.#chat.conversation) {
      this.#chat.showUsage(node);
      speaker.tell(sentences.end());
    }
    if (outcome.error !== null) this.#deps.onError(outcome.error);
    return outcome;
  }

  #showBusy(isBusy) {
    const [send, stop] = [byId("chat-send"), byId("chat-stop")];
    if (isBusy) swapButtons(send, stop);
    else swapButtons(stop, send);
    this.#log.isBusy = isBusy;
  }
}
