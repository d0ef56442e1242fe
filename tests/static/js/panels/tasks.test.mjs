import assert from "node:assert/strict";
import { test } from "node:test";

import { Tasks } from "../../../../static/js/panels/tasks.js";
import { Tree } from "../../../../static/js/store/tree.js";

test("tokens are counted by a model in memory alone, because to ask wakes it", async () => {
  const model = { id: "tide", max_model_len: 512, state: "asleep" };
  const asked = [];
  const fetch = async (path) => {
    asked.push(path);
    return { ok: true, json: async () => ({ count: 7 }) };
  };
  const tasks = new Tasks({ fetch, model: () => model, parameters: () => ({}), sampling: () => ({}), system: () => "" });
  const conversation = { kind: "chat", tree: new Tree(), sentFrom: null };
  assert.equal(await tasks.count(conversation, "Ebb?", []), null);
  assert.deepEqual(asked, []);
  model.state = "ready";
  assert.deepEqual(await tasks.count(conversation, "Ebb?", []), { used: 7, limit: 512 });
  assert.deepEqual(asked, ["/tokenize"]);
});
