import assert from "node:assert/strict";
import { test } from "node:test";

import { addChunk, makeAnswer, tokensOf } from "../../../../static/js/views/answer.js";

const TOP = [{ id: 5, token: " a", logprob: -0.5 }, { id: 6, token: " b", logprob: -1.5 }];

test("both routes' log probabilities give the same tokens", () => {
  const ofCompletion = tokensOf([6], { tokens: [" b"], token_logprobs: [-1.5], token_ranks: [2], alternatives: [TOP] }, " b", 3);
  const ofChat = tokensOf([6], { content: [{ id: 6, token: " b", logprob: -1.5, rank: 2, top_logprobs: TOP }] }, " b", 3);
  assert.deepEqual(ofCompletion, ofChat);
  assert.deepEqual(ofChat[0], {
    id: 6, text: " b", logprob: -1.5, rank: 2, masked: 0, at: 3,
    top: [{ id: 5, text: " a", logprob: -0.5 }, { id: 6, text: " b", logprob: -1.5 }],
  });
});

test("without probabilities there are ids and the text of all; without ids the text alone", () => {
  assert.deepEqual(tokensOf([1, 2], null, "ab", 0).map(({ id, text }) => [id, text]), [[1, "ab"], [2, ""]]);
  assert.deepEqual(tokensOf(null, null, "ab", 0).map(({ id, text }) => [id, text]), [[null, "ab"]]);
  assert.deepEqual(tokensOf(null, null, "", 0), []);
});

test("chunks make an answer", () => {
  const answer = makeAnswer({ prompt: "x" }, "sse");
  const chunk = { text: "", tokenIds: null, promptTokenIds: null, logprobs: null, finish: null, usage: null, raw: null };
  addChunk(answer, { ...chunk, text: "a", tokenIds: [97], promptTokenIds: [1, 2], raw: { a: 1 } }, 10);
  addChunk(answer, { ...chunk, finish: "stop", usage: { prompt_tokens_details: { cached_tokens: 1 } } }, 20);
  assert.deepEqual([answer.text, answer.tokens.length, answer.promptTokens, answer.numCached, answer.finish], ["a", 1, [1, 2], 1, "stop"]);
  assert.deepEqual(answer.events, [{ at: 10, raw: { a: 1 } }]);
});

test("both routes tell what a grammar took away", () => {
  const [ofCompletion] = tokensOf([6], { tokens: [" b"], token_logprobs: [-1.5], masked_probabilities: [0.25] }, " b", 0);
  const [ofChat] = tokensOf([6], { content: [{ token: " b", logprob: -1.5, masked_probability: 0.25 }] }, " b", 0);
  assert.deepEqual([ofCompletion.masked, ofChat.masked], [0.25, 0.25]);
});
