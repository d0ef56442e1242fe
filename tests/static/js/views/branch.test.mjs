import assert from "node:assert/strict";
import { test } from "node:test";

import { branchTask, givenTokens } from "../../../../static/js/views/branch.js";
import { firstDifference } from "../../../../static/js/views/compare.js";

const token = (id) => ({ id, text: `t${id}`, logprob: -1, rank: 1, at: 5, top: [{ id, text: `t${id}`, logprob: -1 }, { id: 90, text: "x", logprob: -2 }] });
const LIMITS = { numAlternatives: 5, maxModelLen: 100 };

test("a branch asks for the answer so far as output, with everything else as it was", () => {
  const task = { messages: [{}], logprobs: true, top_logprobs: 5, temperature: 0.8, seed: 7, max_tokens: 20, model: "m" };
  const answer = { task, promptTokens: [1, 2, 3], tokens: [10, 11, 12].map(token), numGiven: 0 };
  assert.deepEqual(branchTask(answer, 1, 90, LIMITS), {
    temperature: 0.8, seed: 7, max_tokens: 20, model: "m", logprobs: 5, prompt: [1, 2, 3, 10, 90], num_prompt_output_tokens: 2,
  });
});

test("a branch of a branch begins at the same prompt", () => {
  const task = { prompt: [1, 2, 3, 10, 90], num_prompt_output_tokens: 2, max_tokens: 20 };
  const answer = { task, promptTokens: [1, 2, 3, 10, 90], tokens: [10, 90, 13].map(token), numGiven: 2 };
  const { prompt, num_prompt_output_tokens: numOutput } = branchTask(answer, 2, 90, LIMITS);
  assert.deepEqual([prompt, numOutput], [[1, 2, 3, 10, 90, 90], 3]);
});

test("the length leaves room for at least one token, and the model's context is its limit", () => {
  const answer = { task: { max_tokens: 2 }, promptTokens: [1], tokens: [10, 11].map(token), numGiven: 0 };
  assert.equal(branchTask(answer, 1, 90, LIMITS).max_tokens, 3);
  assert.equal(branchTask({ ...answer, task: {} }, 1, 90, LIMITS).max_tokens, 99);
});

test("the given tokens end with the one that was chosen", () => {
  const answer = { tokens: [10, 11].map(token) };
  const given = givenTokens(answer, 1, { id: 90, text: "x", logprob: -2 });
  assert.deepEqual(given.map(({ id, rank, isForced }) => [id, rank, isForced]), [[10, 1, undefined], [90, 2, true]]);
});

test("answers part at the first place where one differs", () => {
  const tokens = (...ids) => ids.map(token);
  assert.equal(firstDifference([tokens(1, 2, 3), tokens(1, 2, 4), tokens(1, 2, 3)]), 2);
  assert.equal(firstDifference([tokens(1, 2), tokens(1, 2, 3)]), null);
  assert.equal(firstDifference([tokens(1)]), null);
});

test("answers of several models part where their texts do", () => {
  const words = (...texts) => texts.map((text, at) => ({ id: at, text }));
  const [first, second] = [words("The", " tide"), words("The", " ebb").map((one) => ({ ...one, id: one.id + 9 }))];
  assert.equal(firstDifference([first, second], ["small", "coder"]), 1);
  assert.equal(firstDifference([first, second], ["small", "small"]), 0);
});
