/** What is written and not sent yet, for each conversation, over reloads: `{content, attachments}`. */

import { isAttachment } from "./tree.js";

const KEY = "eagre.draft.";
const NEW = "new"; // the conversation that has no message yet

export class Drafts {
  #storage;
  #memory = new Map();

  /** @param {() => Storage} storage calling it may throw where it is blocked */
  constructor(storage) {
    this.#storage = storage;
  }

  get(id) {
    const key = KEY + (id ?? NEW);
    if (this.#memory.has(key)) return this.#memory.get(key);
    try {
      const { content, attachments } = JSON.parse(this.#storage().getItem(key));
      return { content: String(content), attachments: attachments.filter(isAttachment) };
    } catch {
      return null; // none, no storage, or not our JSON
    }
  }

  /** Keeps a draft; an empty one, or null, is forgotten. */
  set(id, draft) {
    const key = KEY + (id ?? NEW);
    const isEmpty = draft === null || (draft.content === "" && draft.attachments.length === 0);
    if (isEmpty) this.#memory.delete(key);
    else this.#memory.set(key, draft);
    try {
      if (isEmpty) this.#storage().removeItem(key);
      else this.#store(key, draft);
    } catch {
      // No storage, or a full one: the draft lasts as long as the page.
    }
  }

  #store(key, draft) {
    try {
      this.#storage().setItem(key, JSON.stringify(draft));
    } catch {
      this.#storage().setItem(key, JSON.stringify({ ...draft, attachments: [] })); // files may be larger than a storage is
    }
  }
}
