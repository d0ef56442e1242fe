/**
 * The reader's conversations: kept, found, renamed, forgotten, and taken elsewhere as JSON.
 *
 * A conversation is `{id, title, system, created, updated, tree}`. The list is of summaries, which have `text`, the
 * words to search, in the place of the tree.
 */

import { MAX_NODES, Tree, readNode } from "./tree.js";

const FORMAT = "eagre.conversations";
const MAX_TITLE = 60;
const MAX_SEARCHED = 20_000; // characters of a conversation
const MAX_WRITTEN = 500; // events that are copied between two turns of the page; 500 with probabilities take about 3 ms

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
  create(system) {
    const now = this.#now();
    return { id: makeId(), title: "", system, created: now, updated: now, tree: new Tree() };
  }

  /** Summaries of the conversations that have all words of the query, the latest first. */
  async find(query = "") {
    const words = query.toLowerCase().split(/\s+/).filter((word) => word !== "");
    const found = (await this.#database.conversations()).filter(({ title, text }) => {
      const searched = `${title}\n${text}`.toLowerCase();
      return words.every((word) => searched.includes(word));
    });
    return found.sort((a, b) => b.updated - a.updated);
  }

  /** The conversation, or null where it is not kept any more. */
  async load(id) {
    const summary = (await this.#database.conversations()).find((record) => record.id === id);
    if (summary === undefined) return null;
    const { nodes, pieces } = await this.#database.partsOf(id);
    const { title, system, created, updated, chosen } = summary;
    return { id, title, system, created, updated, tree: new Tree(this.#join(nodes, pieces), chosen) };
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
    const summary = (await this.#database.conversations()).find((record) => record.id === id);
    if (summary !== undefined) await this.#database.put({ ...summary, title: cut(title) }, []);
  }

  async remove(id) {
    await this.#database.remove(id);
  }

  async removeNodes(conversation, ids) {
    await this.#database.remove(conversation.id, ids);
  }

  /** All of these conversations as JSON. */
  async export(ids) {
    const conversations = [];
    for (const id of ids) {
      const conversation = await this.load(id);
      if (conversation === null) continue;
      const { title, system, created, updated, tree } = conversation;
      conversations.push({ title, system, created, updated, chosen: tree.chosen(), messages: tree.nodes() });
    }
    return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
  }

  /**
   * Adds the conversations of a file, under new ids. Returns how many.
   *
   * @throws {Error} with a sentence that says what is wrong with the file; nothing is added then
   */
  async import(text) {
    const conversations = read(text);
    for (const conversation of conversations) {
      await this.#keep(conversation, conversation.tree.nodes(), true);
    }
    return conversations.length;
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
  return conversation.title || cut(first?.content ?? first?.attachments[0]?.name ?? "") || "Untitled";
}

/** 64 random bits; `crypto.randomUUID` is missing where a page comes over plain HTTP from another machine. */
export function makeId() {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function read(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("The file has no conversations of this playground.");
  }
  return file.conversations.map((raw, index) => {
    try {
      return readConversation(raw);
    } catch (error) {
      throw new Error(`Conversation ${index + 1} of the file cannot be read: ${error.message}.`);
    }
  });
}

function readConversation(raw) {
  if (raw === null || typeof raw !== "object" || !Array.isArray(raw.messages)) throw new Error("it has no messages");
  if (raw.messages.length > MAX_NODES) throw new Error(`it has more than ${MAX_NODES} messages`);
  const tree = new Tree(raw.messages.map(readNode), Object(raw.chosen));
  const time = (value) => (Number.isFinite(value) ? value : 0);
  return {
    id: makeId(),
    title: typeof raw.title === "string" ? cut(raw.title) : "",
    system: typeof raw.system === "string" ? raw.system : "",
    created: time(raw.created),
    updated: time(raw.updated),
    tree,
  };
}

function summaryOf(conversation) {
  const { id, system, created, updated, tree } = conversation;
  const text = tree.nodes().map(({ content }) => content).join("\n").slice(0, MAX_SEARCHED);
  return { id, title: titleOf(conversation), system, created, updated, chosen: tree.chosen(), numMessages: tree.size, text };
}

function cut(text) {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}
