import assert from "node:assert/strict";
import { test } from "node:test";

import { Tasks } from "../../../../static/js/panels/tasks.js";
import { Tree, makeAnswer, readNode } from "../../../../static/js/store/tree.js";

test("tokens are counted by a model in memory alone, because to ask wakes it", async () => {
  const model = { id: "tide", max_model_len: 512, state: "asleep" };
  const asked = [];
  const fetch = async (path) => {
    asked.push(path);
    return { ok: true, json: async () => ({ count: 7 }) };
  };
  const tasks = new Tasks({ fetch, modelOf: () => model, parameters: () => ({}), sampling: () => ({}), system: () => "" });
  const conversation = { kind: "chat", tree: new Tree(), sentFrom: null };
  assert.equal(await tasks.count(conversation, "Ebb?", []), null);
  assert.deepEqual(asked, []);
  model.state = "ready";
  assert.deepEqual(await tasks.count(conversation, "Ebb?", []), { used: 7, limit: 512 });
  assert.deepEqual(asked, ["/tokenize"]);
});

test("the request for an answer is told as it was: its messages, and the parameters that it had", () => {
  const tasks = new Tasks({ modelOf: () => ({ max_model_len: 512 }), parameters: () => ({ seed: 1 }), sampling: () => ({ seed: 1 }), system: () => "Be brief." });
  const question = readNode({ id: "q", role: "user", content: "Ebb? ", created: 1 });
  const node = makeAnswer({ id: "a", parent: "q", model: "m", parameters: { model: "m", seed: 7 }, transport: "sse", created: 2 });
  node.usage = { prompt_tokens: 12 };
  const conversation = { kind: "chat", tree: new Tree([question, node]), sentFrom: null };
  const messages = [{ role: "system", content: "Be brief." }, { role: "user", content: "Ebb? " }];
  assert.deepEqual(tasks.asked(conversation, node), { messages, model: "m", seed: 7 });
  const completion = { ...conversation, kind: "completion" };
  assert.deepEqual(tasks.asked(completion, node), { prompt: "Ebb?", model: "m", seed: 7, max_tokens: 500 });
  assert.equal(tasks.asked(conversation, { ...node, parameters: { num_prompt_output_tokens: 3 } }), null, "of a branch");
});
