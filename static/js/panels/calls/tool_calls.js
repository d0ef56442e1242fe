/** The calls of answers: which tool runs them, with or without a question, and what it gives back. */

import { makeId } from "../../store/library.js";
import { words } from "../../words/words.js";

export class ToolCalls {
  #deps;
  #tools;

  /**
   * @param {import("./conversation_tools.js").ConversationTools} tools
   * @param {{shown: () => object, added: (conversation: object, nodes: object[]) => void, offered: (node: object) => void,
   *   answer: (conversation: object, parent: object) => Promise<unknown>, save: (conversation: object) => void,
   *   toast: import("../../page/toast.js").Toast}} deps `shown` is the conversation that is shown, `added` hears of results,
   *   `offered` of calls that can be run from now on, or have their results, and `answer` asks for the answer to results
   */
  constructor(tools, deps) {
    this.#tools = tools;
    this.#deps = deps;
  }

  /** What the messages of the conversation that is shown do with calls. */
  get actions() {
    const { shown } = this.#deps;
    return {
      answerCalls: (node, results) => this.#answer(shown(), node, results),
      runnerOf: (call) => this.#tools.describe(shown(), call),
      isAllowed: (call) => this.#tools.isAllowed(shown(), call),
      allow: (call) => this.#allow(shown(), call),
      run: (call) => this.#tools.run(shown(), call),
      isRunning: (call) => this.#tools.isRunning(call),
      resultsOf: (node) => shown().tree.childrenOf(node.id).filter(({ role }) => role === "tool"),
    };
  }

  /** The task with the tools that the conversation uses; the answer says afterwards what was sent. */
  async addTo(own, conversation, answer) {
    if (conversation.kind !== "chat") return own;
    const { task, errors } = await this.#tools.addTo(own, conversation);
    for (const { name, message } of errors) this.#deps.toast.show(words.tools.unreachable(name, message));
    if (task !== own) answer.parameters = { ...answer.parameters, tools: task.tools };
    return task;
  }

  /** Calls that were never answered can be run, once the tools are known. */
  async offer(conversation) {
    const last = conversation.tree.path().at(-1);
    if (last?.role !== "assistant" || last.finish !== "tool_calls" || conversation.toolSources.length === 0) return;
    await this.#tools.addTo({}, conversation);
    this.#show(conversation, last);
  }

  /** Runs the calls of an answer, where the reader has allowed all of these tools. */
  async run(conversation, node) {
    if (!this.#tools.knows(conversation)) await this.offer(conversation); // the answer began before a reload
    if (!this.#tools.runsAlone(conversation, conversation.tree.pathTo(node.id))) return;
    const running = Promise.all(node.toolCalls.map(async (call) => {
      const { text } = await this.#tools.run(conversation, call);
      return { id: call.id, content: text };
    }));
    this.#show(conversation, node); // calls that run are not offered
    let results;
    try {
      results = await running;
    } catch {
      this.#show(conversation, node); // the reader has stopped them, and may run them again
      return;
    }
    const isLast = conversation.tree.path().at(-1) === node; // or the conversation has gone on meanwhile
    if (isLast && !conversation.isGone) await this.#answer(conversation, node, results);
  }

  async #answer(conversation, node, results) {
    if (conversation.tree.childrenOf(node.id).some(({ role }) => role === "tool")) return; // they were told already
    let parent = node.id;
    const nodes = results.map(({ id, content }) => {
      const tool = { id: makeId(), parent, role: "tool", content, created: Date.now(), toolCallId: id };
      parent = tool.id;
      return conversation.tree.add(tool);
    });
    this.#deps.added(conversation, nodes);
    this.#show(conversation, node); // calls that ran by themselves ask for nothing any more
    await this.#deps.answer(conversation, nodes.at(-1));
  }

  #show(conversation, node) {
    if (conversation === this.#deps.shown()) this.#deps.offered(node);
  }

  #allow(conversation, { name }) {
    if (!conversation.allowedTools.includes(name)) conversation.allowedTools.push(name);
    this.#deps.save(conversation);
  }
}
