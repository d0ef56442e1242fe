/**
 * One answer as its tokens: what the server sent with each of them, however its route words it.
 *
 * @typedef {{id: number|null, text: string, logprob: number|null, rank: number|null, masked: number, at: number|null,
 *            isForced?: boolean, top: {id: number, text: string, logprob: number}[]}} Token `at` in milliseconds since the
 *            request, null where nobody has measured them; `masked` is the probability of what a grammar did not allow in
 *            its place, 0 to 1
 * @typedef {{task: object, transport: string, promptTokens: number[]|null, numCached: number|null, tokens: Token[],
 *            numGiven: number, events: {at: number|null, raw: object}[], numLeftOut: number, text: string,
 *            finish: string|null, error: string|null, usage: object|null, asked?: () => object|null}} Answer `numGiven` of the
 *            tokens were in the prompt already, `numLeftOut` events were too many to keep, and `asked` makes the task that an
 *            answer of a conversation had
 */

import { completionOf } from "./branch.js";

export const NUM_ALTERNATIVES = 5;
const MOST_EVENTS = 20_000;

/** @param {object} task as it is sent @returns {Answer} */
export function makeAnswer(task, transport, given = []) {
  return {
    task, transport, promptTokens: null, numCached: null, tokens: [...given], numGiven: given.length, events: [],
    numLeftOut: 0, text: given.map((token) => token.text).join(""), finish: null, error: null, usage: null,
  };
}

/** Adds what a chunk brings. @param {import("../transport/chunk.js").Chunk} chunk @returns {Token[]} the new tokens */
export function addChunk(answer, chunk, at) {
  const tokens = tokensOf(chunk.tokenIds, chunk.logprobs, chunk.text, at);
  for (const token of tokens) answer.tokens.push(token);
  answer.text += chunk.text;
  if (chunk.promptTokenIds !== null) answer.promptTokens ??= chunk.promptTokenIds;
  if (chunk.finish !== null) answer.finish = chunk.finish;
  if (chunk.usage !== null) {
    answer.usage = chunk.usage;
    answer.numCached = chunk.usage.prompt_tokens_details?.cached_tokens ?? null;
  }
  if (chunk.raw !== null) {
    if (answer.events.length < MOST_EVENTS) answer.events.push({ at, raw: chunk.raw });
    else answer.numLeftOut += 1;
  }
  return tokens;
}

/**
 * An answer of the chat, from its node in the tree of messages (see `store/tree.js`). Its task is a completion of the same
 * tokens, which has probabilities even where the chat had none. @returns {Answer}
 */
export function answerOfNode(node) {
  const most = node.parameters.max_completion_tokens ?? node.parameters.max_tokens;
  const task = { ...completionOf(node.parameters), prompt: node.promptTokens ?? [], max_tokens: most, logprobs: NUM_ALTERNATIVES };
  const answer = makeAnswer(task, node.transport);
  answer.promptTokens = node.promptTokens;
  answer.numGiven = node.parameters.num_prompt_output_tokens ?? 0; // of a branch that was kept
  const events = node.events.map((event) => ({ ...event, logprobs: readLogprobs(event.logprobs) }));
  for (const { at, text, ids, logprobs } of events) answer.tokens.push(...tokensOf(ids, logprobs, text, at));
  answer.events = events.map(({ at, ...raw }) => ({ at, raw }));
  answer.text = node.content;
  answer.usage = node.usage;
  answer.numCached = node.usage?.prompt_tokens_details?.cached_tokens ?? null;
  answer.finish = node.finish;
  return answer;
}

/** What a node keeps of log probabilities; older ones keep them as they came. */
function readLogprobs(kept) {
  if (typeof kept !== "string") return kept ?? null;
  try {
    return JSON.parse(kept);
  } catch {
    return null; // of a file that somebody has changed
  }
}

/** @returns {Token[]} */
export function tokensOf(ids, logprobs, text, at) {
  const make = (fields) => ({ id: null, text: "", logprob: null, rank: null, masked: 0, at, top: [], ...fields });
  if (Array.isArray(logprobs?.content)) {
    return logprobs.content.map((entry, index) => make({
      id: entry.id ?? ids?.[index] ?? null, text: entry.token, logprob: entry.logprob, rank: entry.rank ?? null,
      masked: entry.masked_probability ?? 0, ...(entry.is_forced ? { isForced: true } : {}),
      top: (entry.top_logprobs ?? []).map(({ id = null, token, logprob }) => ({ id, text: token, logprob })),
    }));
  }
  if (Array.isArray(logprobs?.tokens)) {
    return logprobs.tokens.map((token, index) => make({
      id: ids?.[index] ?? null, text: token, logprob: logprobs.token_logprobs[index], rank: logprobs.token_ranks?.[index] ?? null,
      masked: logprobs.masked_probabilities?.[index] ?? 0,
      top: (logprobs.alternatives?.[index] ?? []).map((one) => ({ id: one.id, text: one.token, logprob: one.logprob })),
    }));
  }
  if (ids === null) return text === "" ? [] : [make({ text })];
  return ids.map((id, index) => make({ id, text: index === 0 ? text : "" })); // the text of all of them together
}

/** Natural logarithms to shares, 0 to 1. */
export function probability(logprob) {
  return logprob === null ? null : Math.exp(Math.min(logprob, 0));
}

/** Bits. */
export function surprise(logprob) {
  return logprob === null ? null : -logprob / Math.LN2;
}
