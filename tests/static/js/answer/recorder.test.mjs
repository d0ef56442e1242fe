import assert from "node:assert/strict";
import { test } from "node:test";

import { end, record } from "../../../../static/js/answer/recorder.js";
import { Sentences } from "../../../../static/js/answer/sentences.js";
import { makeAnswer } from "../../../../static/js/store/tree.js";
import { makeChunk } from "../../../../static/js/transport/chunk.js";

test("a node has what its chunks brought: text, reasoning, calls, tokens, and the place of its stream", () => {
  const node = makeAnswer({ id: "a", parent: null, model: "m", parameters: {}, transport: "sse", created: 0 });
  const stream = (place) => ({ id: "s", place });
  record(node, makeChunk({ stream: stream(null) }), 1);
  record(node, makeChunk({ reasoning: "hm", tokenIds: [1], promptTokenIds: [9, 8], stream: stream("s:1") }), 2.04);
  record(node, makeChunk({ text: "Yes", tokenIds: [2], logprobs: { content: [] }, stream: stream("s:2") }), 3);
  const piece = (fields) => makeChunk({ toolCalls: [{ index: 0, ...fields }] });
  record(node, piece({ id: "c", function: { name: "f" } }), 4);
  record(node, piece({ function: { arguments: '{"x":' } }), 5);
  record(node, piece({ function: { arguments: "1}" } }), 6);
  record(node, makeChunk({ finish: "tool_calls", usage: { total_tokens: 4 }, stream: stream(null) }), 7);
  assert.deepEqual([node.content, node.reasoning, node.promptTokens], ["Yes", "hm", [9, 8]]);
  assert.deepEqual(node.stream, stream("s:2"));
  assert.deepEqual(node.toolCalls, [{ index: 0, id: "c", name: "f", arguments: '{"x":1}' }]);
  assert.deepEqual(node.events, [
    { at: 2, text: "", reasoning: "hm", ids: [1], logprobs: null },
    { at: 3, text: "Yes", reasoning: "", ids: [2], logprobs: '{"content":[]}' },
  ]);
  end(node, { finish: "tool_calls", error: null, figures: ["x"] });
  assert.deepEqual([node.finish, node.stream, node.usage], ["tool_calls", null, { total_tokens: 4 }]);
});

test("sentences are told whole, however their text was cut", () => {
  const text = 'One. "Two!" Is 3.5 three? Line\nend';
  for (let cut = 0; cut <= text.length; cut += 1) {
    const sentences = new Sentences();
    const told = [sentences.feed(text.slice(0, cut)), sentences.feed(text.slice(cut)), sentences.end()];
    const words = told.filter((part) => part !== "").join(" ");
    assert.equal(words.replace(/\s+/g, " "), 'One. "Two!" Is 3.5 three? Line end', `cut at ${cut}`);
    for (const part of told.slice(0, 2)) assert.match(part, /^$|[.!?"]$|Line$/);
  }
});
