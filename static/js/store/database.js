/**
 * Where records lie: IndexedDB, or, where a browser refuses it, the memory of the page. Both have the same four
 * operations. Records of `conversations` have an `id`, those of `nodes` a `conversation` and an `id`, those of `pieces`,
 * parts of a node that come one by one, a `conversation`, a `node` and their place `first`.
 */

const NAME = "eagre.playground";
const VERSION = 2;

export class MemoryDatabase {
  #conversations = new Map();
  #nodes = new Map(); // conversation -> id -> node
  #pieces = new Map(); // conversation -> node and place as a text -> piece

  async conversations() {
    return [...this.#conversations.values()].map((record) => structuredClone(record));
  }

  /** What there is of a conversation at one moment. @returns {Promise<{nodes: object[], pieces: object[]}>} */
  async partsOf(conversation) {
    const recordsOf = (store) => structuredClone([...(store.get(conversation)?.values() ?? [])]);
    return { nodes: recordsOf(this.#nodes), pieces: recordsOf(this.#pieces) };
  }

  /** Writes a conversation, or null, nodes and pieces: all or nothing. */
  async put(conversation, nodes, pieces = []) {
    if (conversation !== null) this.#conversations.set(conversation.id, structuredClone(conversation));
    const add = (store, record, key) => {
      if (!store.has(record.conversation)) store.set(record.conversation, new Map());
      store.get(record.conversation).set(key, structuredClone(record));
    };
    for (const node of nodes) add(this.#nodes, node, node.id);
    for (const piece of pieces) add(this.#pieces, piece, `${piece.node} ${piece.first}`);
  }

  /** Forgets these nodes of a conversation; all of it where `ids` is null. */
  async remove(conversation, ids = null) {
    if (ids === null) {
      this.#conversations.delete(conversation);
      this.#nodes.delete(conversation);
      this.#pieces.delete(conversation);
      return;
    }
    const pieces = this.#pieces.get(conversation);
    for (const id of ids) this.#nodes.get(conversation)?.delete(id);
    for (const [key, { node }] of pieces ?? []) if (ids.includes(node)) pieces.delete(key);
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
    opening.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) {
        opening.result.createObjectStore("conversations", { keyPath: "id" });
        opening.result.createObjectStore("nodes", { keyPath: ["conversation", "id"] });
      }
      opening.result.createObjectStore("pieces", { keyPath: ["conversation", "node", "first"] });
    };
    const database = await resultOf(opening);
    database.onversionchange = () => database.close(); // a newer page of another tab needs it
    return new IndexedDatabase(database);
  }

  conversations() {
    return resultOf(this.#database.transaction("conversations").objectStore("conversations").getAll());
  }

  async partsOf(conversation) {
    const reading = this.#database.transaction(["nodes", "pieces"]);
    const read = (name) => resultOf(reading.objectStore(name).getAll(rangeOf(conversation)));
    const [nodes, pieces] = await Promise.all([read("nodes"), read("pieces")]);
    return { nodes, pieces };
  }

  put(conversation, nodes, pieces = []) {
    return this.#write((store) => {
      if (conversation !== null) store("conversations").put(conversation);
      for (const node of nodes) store("nodes").put(node);
      for (const piece of pieces) store("pieces").put(piece);
    });
  }

  remove(conversation, ids = null) {
    return this.#write((store) => {
      if (ids === null) {
        store("conversations").delete(conversation);
        for (const name of ["nodes", "pieces"]) store(name).delete(rangeOf(conversation));
        return;
      }
      for (const id of ids) {
        store("nodes").delete([conversation, id]);
        store("pieces").delete(rangeOf(conversation, id));
      }
    });
  }

  #write(change) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(["conversations", "nodes", "pieces"], "readwrite");
      transaction.oncomplete = () => resolve();
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
      change((name) => transaction.objectStore(name));
    });
  }
}

/** The keys of several parts that begin with these: every list is greater than every text and every number. */
function rangeOf(...parts) {
  return IDBKeyRange.bound(parts, [...parts, []]);
}

function resultOf(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("the database is in use"));
  });
}
