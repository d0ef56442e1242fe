import assert from "node:assert/strict";
import { test } from "node:test";

import { makeAnswer as makeNode } from "../../../../static/js/store/tree.js";
import { addChunk, answerOfNode, makeAnswer } from "../../../../static/js/views/answer.js";
import { branchTask, givenTokens, keptBranch, saidBy } from "../../../../static/js/views/branch.js";
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

/** A node with an event for each of these: [ids, text, reasoning]. */
function nodeOf(...pieces) {
  const node = makeNode({ id: "a", parent: "q", model: "m", parameters: { model: "m", seed: 7 }, transport: "sse", created: 1 });
  for (const [ids, text, reasoning = ""] of pieces) {
    node.events.push({ at: 1, text, reasoning, ids, logprobs: null });
    node.content += text;
    node.reasoning += reasoning;
  }
  return Object.assign(node, { promptTokens: [1, 2], finish: "stop" });
}

/** A branch of it at a place, with what came after the token that was chosen. */
function branchOf(node, at, chosen, own) {
  const given = answerOfNode(node).tokens.slice(0, at);
  const branch = makeAnswer(
    { prompt: [1, 2, ...given.map(({ id }) => id), chosen.id], num_prompt_output_tokens: at + 1, seed: 7, model: "m", max_tokens: 20, logprobs: 5 },
    "sse", [...given, { ...token(chosen.id), ...chosen, isForced: true }],
  );
  for (const { id, text } of own) addChunk(branch, { tokenIds: [id], logprobs: null, text, promptTokenIds: null, finish: null, usage: null, raw: null }, 9);
  branch.finish = "length";
  return branch;
}

test("a branch that is kept is an answer: its text, its tokens, and the request that has it again", () => {
  const node = nodeOf([[10, 11], "High "], [[12], "tide"]);
  const branch = branchOf(node, 2, { id: 90, text: "water" }, [{ id: 13, text: " at" }, { id: 14, text: " noon" }]);
  const kept = { ...node, ...keptBranch(node, branch) };
  assert.equal(kept.content, "High water at noon");
  assert.deepEqual(kept.figures, [["branch", 3], ["stoppedAt", 5]]);
  assert.deepEqual(kept.parameters, { num_prompt_output_tokens: 3, seed: 7, model: "m", max_tokens: 20 });
  const again = answerOfNode(kept);
  assert.deepEqual(again.tokens.map(({ id }) => id), [10, 11, 90, 13, 14]);
  assert.deepEqual([again.tokens[2].isForced, again.tokens[2].top[1].id, again.numGiven, again.finish], [true, 90, 3, "length"]);
  assert.deepEqual([again.task.prompt, again.task.num_prompt_output_tokens], [branch.task.prompt, 3]);
});

test("what is said of a branch is told from what was thought", () => {
  const node = nodeOf([[10], "", "Hm"], [[11], "", "m."], [[12], ""], [[13], "High"], [[14], " tide"]);
  const said = (...branch) => saidBy(node, branchOf(node, ...branch));
  assert.deepEqual(said(4, { id: 90, text: " water" }, []), { content: "High water", reasoning: "Hmm." });
  const thought = [{ id: 15, text: " Or so." }, { id: 12, text: "</think>" }, { id: 16, text: "\n\nLow" }];
  assert.deepEqual(said(1, { id: 90, text: "mm" }, thought), { content: "Low", reasoning: "Hmmm Or so." });
  assert.equal(said(1, { id: 90, text: "mm" }, thought.slice(0, 1)), null, "it has only thought");
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
