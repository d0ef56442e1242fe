/** The tools of conversations: which sources there are, what each conversation uses, and which tools run without a question. */

import { ToolBox } from "../../tools/tool_box.js";

const MOST_ROUNDS = 8; // of calls that run by themselves after one question

export class ConversationTools {
  #fetch;
  #sources = null; // a promise of them
  #boxes = new WeakMap(); // conversation -> ToolBox
  #running = new WeakMap(); // conversation -> AbortController
  #results = new WeakMap(); // call -> the promise of its result, while it runs

  /** @param {typeof fetch} fetch of paths of this page's server, with its key */
  constructor(fetch) {
    this.#fetch = fetch;
  }

  /** Where tools may come from: the page itself, and the MCP servers that the operator has named. */
  sources() {
    this.#sources ??= this.#list();
    return this.#sources;
  }

  /** Adds the tools that the conversation uses to those of a request. @returns {Promise<{task: object, errors: object[]}>} */
  async addTo(task, conversation) {
    if (conversation.toolSources.length === 0) return { task, errors: [] };
    const box = await this.#box(conversation);
    const { tools, errors } = await box.load(conversation.toolSources);
    const own = task.tools ?? [];
    const names = new Set(own.map((tool) => tool.function.name));
    const added = tools.filter((tool) => !names.has(tool.function.name)); // what was written by hand goes first
    if (added.length === 0) return { task, errors };
    return { task: { ...task, tools: [...own, ...added] }, errors };
  }

  /** Who runs a call: the source's and the tool's name, or null where the reader has to answer. */
  describe(conversation, call) {
    const box = this.#boxes.get(conversation);
    return box?.has(call.name) ? box.describe(call.name) : null;
  }

  /** Whether the tools of a conversation have been asked for since the page was loaded. */
  knows(conversation) {
    return this.#boxes.has(conversation);
  }

  isAllowed(conversation, { name }) {
    return conversation.allowedTools.includes(name);
  }

  /** Whether all calls of an answer may run now without a question. @param {object[]} path that ends with the answer */
  runsAlone(conversation, path) {
    const calls = path.at(-1).toolCalls;
    if (calls.length === 0 || !calls.every((call) => this.describe(conversation, call) !== null && this.isAllowed(conversation, call))) return false;
    return roundsOf(path) <= MOST_ROUNDS;
  }

  /** Runs a call; whoever asks for one that runs already gets the same result. @returns {Promise<{text: string, isError: boolean}>} */
  run(conversation, call) {
    if (!this.#results.has(call)) this.#results.set(call, this.#run(conversation, call).finally(() => this.#results.delete(call)));
    return this.#results.get(call);
  }

  isRunning(call) {
    return this.#results.has(call);
  }

  async #run(conversation, call) {
    const control = this.#running.get(conversation) ?? new AbortController();
    this.#running.set(conversation, control);
    return (await this.#box(conversation)).run(call, { signal: control.signal });
  }

  /** Breaks off what runs in a conversation. */
  stop(conversation) {
    this.#running.get(conversation)?.abort();
    this.#running.delete(conversation);
  }

  async #list() {
    const { BuiltinTools, McpClient } = await import("../../tools/sources.js").catch(() => ({}));
    if (BuiltinTools === undefined) {
      this.#sources = null; // the next one may have a server that is back
      return [];
    }
    const own = new BuiltinTools();
    try {
      const response = await this.#fetch("/v1/mcp");
      if (!response.ok) throw new Error(`status ${response.status}`);
      const { data } = await response.json();
      return [own, ...data.map(({ id }) => new McpClient({ name: id, fetch: this.#fetch }))];
    } catch {
      this.#sources = null; // the next one may have a key, or a server that is back
      return [own];
    }
  }

  async #box(conversation) {
    if (!this.#boxes.has(conversation)) {
      const box = new ToolBox(await this.sources());
      await box.load(conversation.toolSources); // a conversation that was kept has calls whose tools are not known yet
      this.#boxes.set(conversation, box);
    }
    return this.#boxes.get(conversation);
  }
}

/** How many answers with calls stand at the end of a path, since the reader has said something. */
function roundsOf(path) {
  const question = path.findLastIndex(({ role }) => role === "user");
  return path.slice(question + 1).filter(({ role, toolCalls }) => role === "assistant" && toolCalls.length > 0).length;
}
