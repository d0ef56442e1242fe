import assert from "node:assert/strict";
import { test } from "node:test";

import { Drafts } from "../../../../static/js/store/drafts.js";

const draft = { content: "half a", attachments: [{ name: "a.txt", text: "x".repeat(100) }] };

function storageOf(most = Infinity) {
  const kept = new Map();
  return {
    getItem: (key) => kept.get(key) ?? null,
    removeItem: (key) => kept.delete(key),
    setItem: (key, value) => {
      if (value.length > most) throw new Error("full");
      kept.set(key, value);
    },
  };
}

test("each conversation has its draft, a new one too, and an empty one is forgotten", () => {
  const storage = storageOf();
  new Drafts(() => storage).set("a", draft);
  const drafts = new Drafts(() => storage);
  assert.deepEqual([drafts.get("a"), drafts.get(null)], [draft, null]);
  drafts.set(null, draft);
  drafts.set("a", { content: "", attachments: [] });
  assert.deepEqual([drafts.get("a"), new Drafts(() => storage).get(null)], [null, draft]);
});

test("where a storage is too small for the files it keeps the text, and a blocked one loses nothing before a reload", () => {
  const small = storageOf(80);
  const drafts = new Drafts(() => small);
  drafts.set("a", draft);
  assert.deepEqual(drafts.get("a"), draft);
  assert.deepEqual(new Drafts(() => small).get("a"), { content: "half a", attachments: [] });
  const blocked = new Drafts(() => {
    throw new Error("blocked");
  });
  blocked.set("a", draft);
  assert.deepEqual(blocked.get("a"), draft);
});
