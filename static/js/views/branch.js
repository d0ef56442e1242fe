/** From an answer and one of its places to the request in which it goes on with another token. */

import { figuresOfEnd } from "../words/figures.js";

const END_OF_REASONING = "</think>"; // as most models write it

const ONLY_CHAT = [
  "messages", "prompt", "tools", "tool_choice", "parallel_tool_calls", "top_logprobs", "logprobs", "continue_final_message",
  "add_generation_prompt", "chat_template_kwargs", "documents", "reasoning_effort", "include_reasoning", "max_completion_tokens",
  "echo", "n", "best_of", "stream", "stream_options", "resumable", "return_progress",
];

/** The parameters of a chat as those of a completion. */
export function completionOf(parameters) {
  return Object.fromEntries(Object.entries(parameters).filter(([name]) => !ONLY_CHAT.includes(name)));
}

/**
 * The answer so far is part of the prompt and counts as output, so that penalties, the length, and each draw by its
 * position are those of the answer that goes on: the same branch is the same text whenever it is taken.
 *
 * @param {import("./answer.js").Answer} answer with the ids of its prompt
 * @param {number} at the place of the token that is replaced
 * @param {number} id of the token in its place
 * @param {{numAlternatives: number, maxModelLen: number}} limits
 */
export function branchTask(answer, at, id, { numAlternatives, maxModelLen }) {
  const { task } = answer;
  const origin = originOf(answer);
  const before = answer.tokens.slice(0, at).map((token) => token.id);
  const most = maxModelLen - origin.length;
  const wanted = task.max_completion_tokens ?? task.max_tokens ?? most;
  return {
    ...completionOf(task),
    prompt: [...origin, ...before, id],
    num_prompt_output_tokens: before.length + 1,
    max_tokens: Math.min(Math.max(wanted, before.length + 2), most), // it counts the answer so far
    logprobs: numAlternatives,
  };
}

/** The prompt without what counts as output. */
export function originOf({ promptTokens, task }) {
  const numGiven = task.num_prompt_output_tokens ?? 0;
  return numGiven === 0 ? promptTokens : promptTokens.slice(0, -numGiven);
}

/**
 * A branch as an answer of its own, beside the one that it parts from.
 *
 * @param {object} node of the answer from which it parts
 * @param {import("./answer.js").Answer} branch which has ended
 * @returns {object|null} what its node has otherwise than `node`; null where that cannot be told, see `saidBy`
 */
export function keptBranch(node, branch) {
  const said = saidBy(node, branch);
  if (said === null) return null;
  const { prompt: _, logprobs: __, ...parameters } = branch.task;
  return {
    ...said, parameters, transport: branch.transport, promptTokens: branch.promptTokens ?? branch.task.prompt, finish: branch.finish,
    events: branch.tokens.map((token, at) => ({
      at: at < branch.numGiven ? null : token.at, text: token.text, reasoning: "", ids: [token.id], logprobs: JSON.stringify(logprobsOf(token)),
    })),
    figures: [["branch", branch.numGiven], ...figuresOfEnd(branch.tokens.length, branch.finish)],
  };
}

/**
 * What a branch says: up to its first own token as the answer did, whose events have whole characters. Null where nobody can
 * tell reasoning and answer apart.
 *
 * @returns {{content: string, reasoning: string}|null}
 */
export function saidBy(node, branch) {
  let [content, reasoning, numSame] = ["", "", 0];
  for (const { ids, text, reasoning: thought } of node.events) {
    if (ids === null || !ids.every((id, at) => branch.tokens[numSame + at]?.id === id)) break;
    numSame += ids.length;
    content += text;
    reasoning += thought;
  }
  const textOf = (tokens) => tokens.map(({ text }) => text).join("");
  const own = branch.text.slice(textOf(branch.tokens.slice(0, branch.numGiven)).length);
  const more = textOf(branch.tokens.slice(numSame, branch.numGiven)) + own;
  if (content !== "") return { content: content + more, reasoning };
  const end = node.reasoning === "" ? -1 : more.indexOf(END_OF_REASONING);
  if (end >= 0) return { content: more.slice(end + END_OF_REASONING.length).trimStart(), reasoning: reasoning + more.slice(0, end) };
  return reasoning === node.reasoning ? { content: more, reasoning } : null;
}

/** A token as chats have it. */
function logprobsOf({ id, text, logprob, rank, masked, top, isForced }) {
  const alternatives = top.map((one) => ({ id: one.id, token: one.text, logprob: one.logprob }));
  const entry = { id, token: text, logprob, rank, masked_probability: masked, top_logprobs: alternatives };
  return { content: [isForced ? { ...entry, is_forced: true } : entry] };
}

/** The tokens of a branch before its first own one. @returns {import("./answer.js").Token[]} */
export function givenTokens(answer, at, alternative) {
  const { id, text, logprob } = alternative;
  const old = answer.tokens[at];
  const rank = 1 + old.top.filter((other) => other.logprob > logprob).length;
  return [...answer.tokens.slice(0, at), { ...old, id, text, logprob, rank, isForced: true }];
}
