/**
 * A client of one MCP server (Model Context Protocol, revision 2025-06-18, "Streamable HTTP").
 *
 * Messages go to this page's own server (`POST /v1/mcp/{name}`), which passes them on and knows address and key.
 */

import { SseParser } from "../transport/sse.js";
import { words } from "../words/words.js";

const PROTOCOL = "2025-06-18";
const MOST_PAGES = 20; // of a list
const MOST_TEXT = 1 << 18; // characters of a result that the model gets
const NOT_FOUND = 404; // the session has ended
const ACCEPTED = 202;

/** What an MCP server refuses, or does not do as the protocol says. */
export class McpError extends Error {
  name = "McpError";
}

export class McpClient {
  name;
  #fetch;
  #session = null;
  #protocol = null; // what the server has chosen; null before the first message
  #capabilities = {};
  #nextId = 1;

  /** @param {{name: string, fetch: typeof fetch}} options `fetch` of paths of this page's server, with its key */
  constructor({ name, fetch }) {
    this.name = name;
    this.#fetch = fetch;
  }

  /** @returns {Promise<{name: string, description: string, inputSchema: object}[]>} */
  async listTools({ signal } = {}) {
    const tools = await this.#list("tools", "tools/list", signal);
    return tools.filter(({ name }) => typeof name === "string").map(({ name, description, title, inputSchema }) => (
      { name, description: description ?? title ?? "", inputSchema: untitled(inputSchema ?? { type: "object" }) }
    ));
  }

  /**
   * What the server has beside tools; of what it has not, nothing is asked.
   *
   * @returns {Promise<{prompts: object[], resources: object[], templates: object[]}>} as the protocol has them
   */
  async listOffers({ signal } = {}) {
    if (this.#protocol === null) await this.#initialize(signal);
    const has = (name) => this.#capabilities?.[name] !== undefined;
    const list = (capability, key, method) => (has(capability) ? this.#list(key, method, signal) : []);
    const [prompts, resources, templates] = await Promise.all([
      list("prompts", "prompts", "prompts/list"),
      list("resources", "resources", "resources/list"),
      list("resources", "resourceTemplates", "resources/templates/list"),
    ]);
    return {
      prompts: prompts.filter(({ name }) => typeof name === "string"),
      resources: resources.filter(({ uri }) => typeof uri === "string"),
      templates: templates.filter(({ uriTemplate }) => typeof uriTemplate === "string"),
    };
  }

  /** @param {Object<string, string>} args @returns {Promise<{role: string, content: object[]}[]>} the messages of a prompt */
  async getPrompt(name, args, { signal } = {}) {
    const { messages } = await this.#request("prompts/get", { name, arguments: args }, signal);
    const given = (Array.isArray(messages) ? messages : []).filter((message) => message?.content !== undefined);
    return given.map(({ role, content }) => ({ role: role === "assistant" ? role : "user", content: [content].flat() }));
  }

  /** @returns {Promise<object[]>} the contents of a resource: `{uri, mimeType, text}` or `{uri, mimeType, blob}` */
  async readResource(uri, { signal } = {}) {
    const { contents } = await this.#request("resources/read", { uri }, signal);
    return Array.isArray(contents) ? contents : [];
  }

  /** @returns {Promise<{text: string, isError: boolean}>} what the tool gave, as a text for the model */
  async callTool(name, args, { signal } = {}) {
    const result = await this.#request("tools/call", { name, arguments: args }, signal);
    return { text: textOf(result).slice(0, MOST_TEXT), isError: result.isError === true };
  }

  /** Ends the session; a server that knows none does not mind. */
  async close() {
    if (this.#session === null) return;
    const headers = this.#headers();
    this.#session = this.#protocol = null;
    await this.#fetch(this.#path, { method: "DELETE", headers }).catch(() => {});
  }

  get #path() {
    return `/v1/mcp/${encodeURIComponent(this.name)}`;
  }

  /** The entries of a list, over all its pages. */
  async #list(key, method, signal) {
    const entries = [];
    let cursor;
    for (let page = 0; page < MOST_PAGES; page += 1) {
      const result = await this.#request(method, cursor === undefined ? {} : { cursor }, signal);
      const listed = Array.isArray(result[key]) ? result[key] : [];
      entries.push(...listed.filter((entry) => entry !== null && typeof entry === "object"));
      cursor = result.nextCursor;
      if (typeof cursor !== "string") break;
    }
    return entries;
  }

  /** Begins a session where there is none, or where the server has forgotten it. */
  async #request(method, params, signal) {
    for (let isSecond = false; ; isSecond = true) {
      if (this.#protocol === null) await this.#initialize(signal);
      try {
        return await this.#send(method, params, signal);
      } catch (error) {
        if (error.status !== NOT_FOUND || isSecond || this.#session === null) throw error;
        this.#session = this.#protocol = null;
      }
    }
  }

  async #initialize(signal) {
    const clientInfo = { name: "eagre-page", version: "1" };
    const result = await this.#send("initialize", { protocolVersion: PROTOCOL, capabilities: {}, clientInfo }, signal);
    this.#capabilities = result.capabilities;
    this.#protocol = typeof result.protocolVersion === "string" ? result.protocolVersion : PROTOCOL;
    await this.#post({ jsonrpc: "2.0", method: "notifications/initialized" }, signal);
  }

  async #send(method, params, signal) {
    const id = this.#nextId++;
    const answer = await this.#post({ jsonrpc: "2.0", id, method, params }, signal);
    const session = answer.headers.get("Mcp-Session-Id");
    if (method === "initialize") this.#session = session;
    const message = await read(answer, id);
    if (message === null) throw new McpError(words.tools.noAnswer(this.name, method));
    if (message.error !== undefined) throw new McpError(`${this.name}: ${message.error?.message ?? words.tools.requestFailed}`);
    return message.result ?? {};
  }

  async #post(message, signal) {
    const headers = { "Content-Type": "application/json", ...this.#headers() };
    const answer = await this.#fetch(this.#path, { method: "POST", headers, body: JSON.stringify(message), signal });
    if (answer.ok || answer.status === ACCEPTED) return answer;
    const body = await answer.json().catch(() => null);
    const error = new McpError(body?.error?.message ?? words.tools.status(this.name, answer.status));
    error.status = answer.status;
    throw error;
  }

  #headers() {
    const headers = {};
    if (this.#session !== null) headers["Mcp-Session-Id"] = this.#session;
    if (this.#protocol !== null) headers["Mcp-Protocol-Version"] = this.#protocol;
    return headers;
  }
}

/** The JSON-RPC answer with this id, from a JSON body or from events; null where there is none. */
async function read(answer, id) {
  const isAnswer = (message) => message?.id === id && ("result" in message || "error" in message);
  if (!(answer.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) {
    const body = parse(await answer.text());
    return [body].flat().find(isAnswer) ?? null;
  }
  const parser = new SseParser();
  const reader = answer.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return null;
      for (const { data } of parser.feed(value)) {
        const found = [parse(data)].flat().find(isAnswer);
        if (found !== undefined) return found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A schema without its titles: generators write names like "addArguments", which small models take for the tool's. */
function untitled(schema) {
  if (Array.isArray(schema)) return schema.map(untitled);
  if (schema === null || typeof schema !== "object") return schema;
  const kept = Object.entries(schema).filter(([name, value]) => name !== "title" || typeof value !== "string");
  return Object.fromEntries(kept.map(([name, value]) => [name, untitled(value)]));
}

function textOf(result) {
  const parts = (Array.isArray(result.content) ? result.content : []).map((part) => {
    if (part?.type === "text") return String(part.text);
    if (part?.type === "resource" && typeof part.resource?.text === "string") return part.resource.text;
    if (part?.type === "resource_link") return String(part.uri);
    return `[${part?.mimeType ?? part?.type ?? "something"} that the model cannot read]`;
  });
  if (parts.length === 0 && result.structuredContent !== undefined) return JSON.stringify(result.structuredContent);
  return parts.join("\n");
}
