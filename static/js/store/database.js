/**
 * Where records lie: IndexedDB, or, where a browser refuses it, the memory of the page. Both have the same four
 * operations. Records of `conversations` have an `id`; those of `nodes` have a `conversation` and an `id`.
 */

const NAME = "eagre.playground";
const VERSION = 1;

export class MemoryDatabase {
  #conversations = new Map();
  #nodes = new Map(); // conversation -> id -> node

  async conversations() {
    return [...this.#conversations.values()].map((record) => structuredClone(record));
  }

  async nodesOf(conversation) {
    return [...(this.#nodes.get(conversation)?.values() ?? [])].map((record) => structuredClone(record));
  }

  /** Writes a conversation, or null, and nodes: all or nothing. */
  async put(conversation, nodes) {
    if (conversation !== null) this.#conversations.set(conversation.id, structuredClone(conversation));
    for (const node of nodes) {
      if (!this.#nodes.has(node.conversation)) this.#nodes.set(node.conversation, new Map());
      this.#nodes.get(node.conversation).set(node.id, structuredClone(node));
    }
  }

  /** Forgets these nodes of a conversation; all of it where `ids` is null. */
  async remove(conversation, ids = null) {
    if (ids === null) {
      this.#conversations.delete(conversation);
      this.#nodes.delete(conversation);
    } else {
      for (const id of ids) this.#nodes.get(conversation)?.delete(id);
    }
  }
}

export class IndexedDatabase {
  #database;

  constructor(database) {
    this.#database = database;
  }

  /** @throws {Error} the browser refuses to keep anything */
  static async open(factory = globalThis.indexedDB) {
    const opening = factory.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.result.createObjectStore("nodes", { keyPath: ["conversation", "id"] });
    };
    const database = await resultOf(opening);
    database.onversionchange = () => database.close(); // a newer page of another tab needs it
    return new IndexedDatabase(database);
  }

  conversations() {
    return resultOf(this.#database.transaction("conversations").objectStore("conversations").getAll());
  }

  nodesOf(conversation) {
    return resultOf(this.#database.transaction("nodes").objectStore("nodes").getAll(rangeOf(conversation)));
  }

  put(conversation, nodes) {
    return this.#write((store) => {
      if (conversation !== null) store("conversations").put(conversation);
      for (const node of nodes) store("nodes").put(node);
    });
  }

  remove(conversation, ids = null) {
    return this.#write((store) => {
      if (ids === null) {
        store("conversations").delete(conversation);
        store("nodes").delete(rangeOf(conversation));
      } else {
        for (const id of ids) store("nodes").delete([conversation, id]);
      }
    });
  }

  #write(change) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(["conversations", "nodes"], "readwrite");
      transaction.oncomplete = () => resolve();
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
      change((name) => transaction.objectStore(name));
    });
  }
}

/** The keys that begin with this conversation: every list is greater than every text. */
function rangeOf(conversation) {
  return IDBKeyRange.bound([conversation], [conversation, []]);
}

function resultOf(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("the database is in use"));
  });
}
