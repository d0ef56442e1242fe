/**
 * The answers that are being written, in any number of conversations at once, one in each: an answer is read into its node
 * of the tree and kept, whether its conversation is shown or not.
 */

import { Generation } from "../answer/generation.js";
import { end, record } from "../answer/recorder.js";
import { withLength } from "../answer/room.js";
import { words } from "../words/words.js";
import { AnswerSaver } from "./answer_saver.js";

const KEY = "eagre.running"; // in the tab's own storage: a reload goes on with these conversations
const LONGEST_END = 1000; // milliseconds in which an answer that is stopped is waited for

export class Answers {
  #running = new Map(); // id of a conversation -> {conversation, node, generation, waiting}
  #ended = new Map(); // id of a conversation -> a promise that its answer is kept
  #deps;
  #library;
  #storage;
  #watch;

  /**
   * @param {{transportOf: (name: string) => object, fetch: typeof fetch, onError: (error: Error) => void, onLost: () => void}} deps
   * @param {Promise<import("../store/library.js").Library>} library
   * @param {() => Storage} storage the tab's own
   * @param {{began: Watcher, grew: Watcher, waits: Watcher, ended: Watcher}} watch called with the conversation and the
   *   node, and `ended` also with the outcome
   */
  constructor(deps, library, storage, watch) {
    this.#deps = deps;
    this.#library = library;
    this.#storage = storage;
    this.#watch = watch;
  }

  /** Whether an answer is being written in this conversation. */
  isBusy(id) {
    return this.#running.has(id);
  }

  get ids() {
    return [...this.#running.keys()];
  }

  /** What is being waited for in a conversation, as words. */
  waitingIn(id) {
    return this.#running.get(id)?.waiting ?? "";
  }

  stop(id) {
    this.#running.get(id)?.generation.stop();
  }

  /** Ends the answer of a conversation, and waits a while until what there is of it is kept. */
  async finish(id) {
    this.stop(id);
    if (this.#running.get(id)?.node.events.length === 0) return;
    // A server that does not answer says no end over a socket.
    await Promise.race([this.#ended.get(id), new Promise((resolve) => setTimeout(resolve, LONGEST_END))]);
  }

  /** The conversation: the one that is being written to, or as it is kept; null where it is not. */
  async load(id) {
    return this.#running.get(id)?.conversation ?? (await (await this.#library).load(id));
  }

  /**
   * Asks for an answer.
   *
   * @param {(task: object) => Promise<object>} complete adds to the task what takes a while to know
   * @returns {Promise<import("../answer/generation.js").Outcome>}
   */
  ask(conversation, node, task, complete = async (own) => own) {
    const transport = this.#deps.transportOf(node.transport);
    let whole = task;
    const prepare = async () => {
      whole = await withLength(await complete(task), this.#deps.fetch);
    };
    return this.#run(conversation, node, (signal) => transport.stream(whole, { signal }), prepare);
  }

  /** Goes on with what this tab was writing when it was loaded anew. */
  async resumeAll() {
    let ids = [];
    try {
      ids = JSON.parse(this.#storage().getItem(KEY)) ?? [];
    } catch {
      // No storage, or not our JSON.
    }
    const kept = await Promise.all(ids.map(async (id) => (await this.#library).load(id)));
    for (const conversation of kept) if (conversation !== null) this.resume(conversation);
  }

  /** Goes on with the answers of a conversation that have no end. */
  async resume(conversation) {
    for (const node of conversation.tree.nodes()) {
      if (node.role !== "assistant" || node.finish !== null || this.#running.get(conversation.id)?.node === node) continue;
      const transport = this.#deps.transportOf(node.transport);
      const { stream } = node;
      if (stream !== null && transport?.resume !== undefined && !this.isBusy(conversation.id)) {
        await this.#run(conversation, node, (signal) => transport.resume(stream, { signal }));
        continue;
      }
      const outcome = { finish: "cut", error: new Error(words.chat.cut), figures: node.figures, measured: node.measured };
      end(node, outcome);
      this.#watch.ended(conversation, node, outcome);
      await new AnswerSaver(this.#library, conversation, node).save();
    }
  }

  #run(conversation, node, open, prepare) {
    const ended = this.#write(conversation, node, open, prepare);
    this.#ended.set(conversation.id, ended);
    return ended;
  }

  async #write(conversation, node, open, prepare) {
    const base = node.events.findLast(({ at }) => at !== null)?.at ?? 0;
    const running = { conversation, node, generation: new Generation(node), waiting: "" };
    this.#running.set(conversation.id, running);
    this.#keepIds();
    const saver = new AnswerSaver(this.#library, conversation, node);
    saver.save();
    this.#watch.began(conversation, node);
    const outcome = await running.generation.run(open, {
      onChunk: (chunk, at) => {
        if (chunk.isWaiting) this.#deps.onLost();
        record(node, chunk, base + at);
        saver.changed();
        this.#watch.grew(conversation, node, chunk);
      },
      onFigures: (figures) => {
        node.figures = figures;
      },
      onWaiting: (text) => {
        running.waiting = text;
        this.#watch.waits(conversation, node, text);
      },
    }, prepare);
    this.#running.delete(conversation.id);
    this.#keepIds();
    // A stream that is still held somewhere is not lost for good; but nobody will ask for it again.
    const error = outcome.error?.code === "unknown_stream" ? new Error(words.chat.restarted) : outcome.error;
    end(node, { ...outcome, error, figures: node.figures });
    this.#watch.ended(conversation, node, outcome);
    await saver.save();
    this.#deps.changed(); // the list shows what is kept
    if (outcome.error !== null) this.#deps.onError(outcome.error);
    return outcome;
  }

  #keepIds() {
    try {
      this.#storage().setItem(KEY, JSON.stringify(this.ids));
    } catch {
      // Without a storage, a reload ends the answers.
    }
  }
}
