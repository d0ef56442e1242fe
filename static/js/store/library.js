/**
 * The reader's conversations: kept, found, renamed, forgotten, and taken elsewhere as JSON.
 *
 * A conversation is `{id, kind, title, system, created, updated, state, sentFrom, tree}`. Its `kind` is "chat" or
 * "completion"; `state` is "new" or "failed" where an answer has ended so and nobody has seen it, else empty; `sentFrom`
 * is the id of the first message that the model still gets, or null for all of them; `toolSources` names where its tools
 * come from, and `allowedTools` those that run without a question; `model` is the name of the model that the reader has
 * chosen in it, if any. The list is of summaries, which have `text`, the words to search, instead of the tree. One that
 * was deleted stays for a while: its summary has `deleted`, the time of it, and its size in `bytes`.
 */

import { words } from "../words/words.js";
import { Tree } from "./tree.js";

const MAX_TITLE = 60;
const MAX_SEARCHED = 20_000; // characters of a conversation
const MAX_WRITTEN = 500; // events that are copied between two turns of the page; 500 with probabilities take about 3 ms

const DAY = 86_400_000; // milliseconds

/** How much of what was deleted is kept, and for how long. */
export const BIN = Object.freeze({ days: 30, most: 50, megabytes: 64 });

export class Library {
  #database;
  #now;
  #numKept = new WeakMap(); // node -> number of its events that are kept; an event never changes, so each is written once

  /** @param {import("./database.js").MemoryDatabase} database */
  constructor(database, { now = () => Date.now() } = {}) {
    this.#database = database;
    this.#now = now;
  }

  /** A conversation that is kept from its first message on. */
  create(system, kind = "chat") {
    const now = this.#now();
    return { id: makeId(), kind, title: "", system, created: now, updated: now, state: "", sentFrom: null, toolSources: [], allowedTools: [], tree: new Tree() };
  }

  /** Summaries of the conversations that have all words of the query, the latest first. */
  async find(query = "") {
    const words = query.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const found = (await this.#summaries()).filter(({ title, text }) => {
      const searched = `${title}\n${text}`.toLowerCase();
      return words.every((word) => searched.includes(word));
    });
    return found.sort((a, b) => b.updated - a.updated);
  }

  /** The conversation, or null where it is not kept any more. */
  async load(id) {
    const summary = await this.#summaryOf(id);
    if (summary === undefined) return null;
    const { nodes, pieces } = await this.#database.partsOf(id);
    const { kind = "chat", title, system, created, updated, state = "", sentFrom = null, toolSources = [], allowedTools = [], model, chosen } = summary;
    return { id, kind, title, system, created, updated, state, sentFrom, toolSources, allowedTools, model, tree: new Tree(this.#join(nodes, pieces), chosen) };
  }

  /** Keeps what has changed: the conversation's own record, and these nodes of it. */
  async save(conversation, nodes = []) {
    conversation.updated = this.#now();
    await this.#keep(conversation, nodes, true);
  }

  /** Keeps one node as it is now, and nothing else; cheap enough for several times a second. */
  async saveNode(conversation, node) {
    await this.#keep(conversation, [node], false);
  }

  async rename(id, title) {
    const summary = await this.#summaryOf(id);
    if (summary !== undefined) await this.#database.put({ ...summary, title: cut(title) }, []);
  }

  /** Deletes a conversation; for a while it can be had back. */
  async remove(id) {
    const summary = await this.#summaryOf(id);
    if (summary === undefined) return;
    const bytes = JSON.stringify(await this.#database.partsOf(id)).length;
    await this.#database.put({ ...summary, deleted: this.#now(), bytes }, []);
    await this.prune();
  }

  /** Summaries of the conversations that were deleted and can be had back, the latest first. */
  async deleted() {
    return (await this.#summaries(true)).sort((a, b) => b.deleted - a.deleted);
  }

  /** Has a deleted conversation back. An answer that was being written then ends where it was cut. */
  async recover(id) {
    const { deleted: _, bytes: __, ...summary } = (await this.#summaries(true)).find((record) => record.id === id) ?? {};
    if (summary.id === undefined) return;
    const { nodes } = await this.#database.partsOf(id);
    const open = nodes.filter(({ finish }) => finish === null);
    await this.#database.put(summary, open.map((node) => ({ ...node, finish: "cut", stream: null })));
  }

  /** Forgets a conversation for good. */
  async forget(id) {
    await this.#database.remove(id);
  }

  /** Forgets for good what was deleted too long ago, or is too much; what was deleted last can be had back in any case. */
  async prune() {
    let numBytes = 0;
    for (const [at, { id, deleted, bytes }] of (await this.deleted()).entries()) {
      numBytes += bytes;
      const isOld = this.#now() - deleted > BIN.days * DAY;
      if (isOld || at >= BIN.most || (at > 0 && numBytes > 1e6 * BIN.megabytes)) await this.forget(id);
    }
  }

  /** Forgets nodes of a conversation; saved again, they are written whole. */
  async removeNodes(conversation, nodes) {
    for (const node of nodes) this.#numKept.delete(node);
    await this.#database.remove(conversation.id, nodes.map(({ id }) => id));
  }

  /** Keeps a conversation that was removed once more, as it was. */
  async restore(conversation) {
    const nodes = conversation.tree.nodes();
    for (const node of nodes) this.#numKept.delete(node);
    await this.#keep(conversation, nodes, true);
  }

  /** Says what nobody has seen of a conversation: "new", "failed", or nothing. */
  async mark(id, state) {
    const summary = await this.#summaryOf(id);
    if (summary !== undefined && (summary.state ?? "") !== state) await this.#database.put({ ...summary, state }, []);
  }

  /**
   * Keeps a copy of a conversation: all of it, or what leads to a message. An answer that is being written ends there, and
   * tools ask again.
   */
  async copy(conversation, upTo = null) {
    const { tree, ...rest } = conversation;
    const nodes = structuredClone(upTo === null ? tree.nodes() : tree.pathTo(upTo));
    for (const node of nodes) if (node.finish === null) Object.assign(node, { finish: "cut", stream: null });
    const now = this.#now();
    const copy = {
      ...rest, id: makeId(), title: cut(words.sidebar.copyOf(titleOf(conversation))), created: now, updated: now, state: "",
      allowedTools: [], tree: new Tree(nodes, upTo === null ? tree.chosen() : {}),
    };
    await this.#keep(copy, copy.tree.nodes(), true);
    return copy;
  }

  /** The text of a file with these conversations, in this page's own form or in another one (see `files.js`). */
  async export(ids, format = "eagre") {
    const conversations = [];
    for (const id of ids) {
      const conversation = await this.load(id);
      if (conversation !== null) conversations.push(conversation);
    }
    const { toFile } = await import("./files.js");
    return toFile(conversations.map((conversation) => ({ ...conversation, title: titleOf(conversation) })), format);
  }

  /**
   * Adds the conversations of a file, under new ids. Returns how many.
   *
   * @throws {Error} with a sentence that says what is wrong with the file; nothing is added then
   */
  async import(text) {
    const { fromFile } = await import("./files.js");
    const conversations = fromFile(text).map((read) => ({ ...read, id: makeId(), title: cut(read.title) }));
    for (const conversation of conversations) {
      await this.#keep(conversation, conversation.tree.nodes(), true);
    }
    return conversations.length;
  }

  /** Of the conversations that are kept, or of those that were deleted. */
  async #summaries(areDeleted = false) {
    return (await this.#database.conversations()).filter(({ deleted }) => (deleted !== undefined) === areDeleted);
  }

  async #summaryOf(id) {
    return (await this.#summaries()).find((record) => record.id === id);
  }

  /** A node's record has the number of its events in their place; those that are not kept yet follow in pieces. */
  async #keep({ id: conversation, ...rest }, nodes, hasSummary) {
    const piece = (node) => {
      const first = this.#numKept.get(node) ?? 0;
      return { conversation, node: node.id, first, events: node.events.slice(first, first + MAX_WRITTEN) };
    };
    const put = async (summary, heads, written) => {
      const pieces = written.map(piece);
      await this.#database.put(summary, heads, pieces.filter(({ events }) => events.length > 0));
      pieces.forEach(({ first, events }, at) => this.#numKept.set(written[at], first + events.length));
    };
    const answers = nodes.filter(({ events }) => events !== undefined);
    for (const node of answers) {
      while (node.events.length - (this.#numKept.get(node) ?? 0) > MAX_WRITTEN) await put(null, [], [node]);
    }
    const heads = nodes.map(({ events, ...head }) => ({ ...head, conversation, ...(events && { numEvents: events.length }) }));
    await put(hasSummary ? summaryOf({ id: conversation, ...rest }) : null, heads, answers);
  }

  /** The nodes with their events. Pieces behind those that a node counts are of a write that was never finished. */
  #join(records, pieces) {
    const eventsOf = new Map();
    for (const { node, first, events } of pieces) {
      if (!eventsOf.has(node)) eventsOf.set(node, []);
      if (first === eventsOf.get(node).length) eventsOf.get(node).push(...events);
    }
    return records.map(({ conversation: _, numEvents, ...node }) => {
      if (numEvents === undefined) return node; // of another role, or with its events, as they were kept once
      node.events = (eventsOf.get(node.id) ?? []).slice(0, numEvents);
      this.#numKept.set(node, node.events.length);
      return node;
    });
  }
}

/** What to call a conversation that nobody has named: its first question. */
export function titleOf(conversation) {
  const first = conversation.tree.nodes().find(({ role }) => role === "user");
  return conversation.title || cut(first?.content || first?.attachments?.[0]?.name || "") || words.sidebar.untitled;
}

/** The model that goes on with a conversation: the one chosen in it, or that of its last answer; null where it has none. */
export function modelNameOf({ model, tree }) {
  return model ?? tree.path().findLast(({ role, model: own }) => role === "assistant" && own !== null)?.model ?? null;
}

/** 64 random bits; `crypto.randomUUID` is missing where a page comes over plain HTTP from another machine. */
export function makeId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function summaryOf(conversation) {
  const { id, kind, system, created, updated, state, sentFrom, toolSources = [], allowedTools = [], model, tree } = conversation;
  const text = tree.nodes().map(({ content }) => content).join("\n").slice(0, MAX_SEARCHED);
  return {
    id, kind, title: titleOf(conversation), system, created, updated, state, sentFrom, toolSources, allowedTools, model,
    chosen: tree.chosen(), numMessages: tree.size, text,
  };
}

function cut(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}
