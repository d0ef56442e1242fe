/** From an answer and one of its places to the request in which it goes on with another token. */

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

/** The tokens of a branch before its first own one. @returns {import("./answer.js").Token[]} */
export function givenTokens(answer, at, alternative) {
  const { id, text, logprob } = alternative;
  const old = answer.tokens[at];
  const rank = 1 + old.top.filter((other) => other.logprob > logprob).length;
  return [...answer.tokens.slice(0, at), { ...old, id, text, logprob, rank, isForced: true }];
}
