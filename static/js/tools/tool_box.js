/** The tools that a conversation may use: which servers they are from, what the model calls them, and which may run. */

const NAME = /[^A-Za-z0-9_-]/g; // what must not be in the name of a function
const MOST_NAME = 64;

export class ToolBox {
  #sources; // by name
  #tools = new Map(); // by the name that the model calls: {source, tool}

  /** @param {{name: string, listTools: Function, callTool: Function}[]} sources */
  constructor(sources) {
    this.#sources = new Map(sources.map((source) => [source.name, source]));
  }

  get sourceNames() {
    return [...this.#sources.keys()];
  }

  /**
   * Asks the sources for their tools; one that cannot be reached does not keep the others away.
   * @param {string[]} names of the sources that the conversation uses
   * @returns {Promise<{tools: object[], errors: {name: string, message: string}[]}>} tools as a request has them
   */
  async load(names, { signal } = {}) {
    const chosen = names.map((name) => this.#sources.get(name)).filter((source) => source !== undefined);
    const lists = await Promise.allSettled(chosen.map((source) => source.listTools({ signal })));
    const errors = [];
    this.#tools = new Map();
    chosen.forEach((source, index) => {
      const { value, reason } = lists[index];
      if (reason !== undefined) errors.push({ name: source.name, message: reason.message });
      for (const tool of value ?? []) this.#tools.set(this.#nameFor(source, tool), { source, tool });
    });
    const tools = [...this.#tools].map(([name, { tool }]) => ({
      type: "function",
      function: { name, description: tool.description, parameters: tool.inputSchema },
    }));
    return { tools, errors };
  }

  /** Whether a call can be made by the page; another one is for the user to answer. */
  has(name) {
    return this.#tools.has(name);
  }

  /** What the user reads of a tool before it runs. @returns {{source: string, tool: string}} */
  describe(name) {
    const { source, tool } = this.#tools.get(name);
    return { source: source.name, tool: tool.name };
  }

  /**
   * Runs a call; a failure is a text for the model, which may try again.
   * @param {{name: string, arguments: string}} call
   * @returns {Promise<{text: string, isError: boolean}>}
   */
  async run(call, { signal } = {}) {
    const found = this.#tools.get(call.name);
    if (found === undefined) return { text: `There is no tool ${call.name}.`, isError: true };
    let args;
    try {
      args = call.arguments.trim() === "" ? {} : JSON.parse(call.arguments);
    } catch (error) {
      return { text: `The arguments are not JSON: ${error.message}.`, isError: true };
    }
    try {
      return await found.source.callTool(found.tool.name, args, { signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return { text: error.message, isError: true };
    }
  }

  async close() {
    await Promise.allSettled([...this.#sources.values()].map((source) => source.close()));
  }

  /** The tool's own name where no other tool has it, else with its source's name before it, or a number behind it. */
  #nameFor(source, tool) {
    const own = tool.name.replace(NAME, "_").slice(0, MOST_NAME);
    const longer = `${source.name.replace(NAME, "_")}__${own}`.slice(0, MOST_NAME);
    let name = this.#tools.has(own) ? longer : own;
    for (let number = 2; this.#tools.has(name); number += 1) name = `${longer.slice(0, MOST_NAME - 4)}_${number}`;
    return name;
  }
}
