/** How long an answer may be that has no length of its own. */

/**
 * The task with a length. A chat without one goes on until it is done; a completion without one would end after the 16
 * tokens of OpenAI's default, so it is given all that its prompt leaves of the model's context.
 *
 * @param {object} task @param {typeof fetch} fetch of the server that answers @returns {Promise<object>}
 */
export async function withLength(task, fetch) {
  if ("messages" in task || task.max_tokens !== undefined) return task;
  const isText = typeof task.prompt === "string";
  const { model } = task;
  try {
    const response = await fetch("/tokenize", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...(model === undefined ? {} : { model }), prompt: isText ? task.prompt : "" }),
    });
    if (!response.ok) return task;
    const { count, max_model_len: most } = await response.json();
    const numPrompt = Math.min(isText ? count : task.prompt.length, keptTokens(task.truncate_prompt_tokens));
    // A length counts the tokens of an answer that goes on.
    const left = most - numPrompt + (task.num_prompt_output_tokens ?? 0);
    return left >= 1 ? { ...task, max_tokens: left } : task;
  } catch {
    return task; // a server that cannot be reached says so when it is asked for the answer
  }
}

/** Of a prompt that is shortened, with room for what the tokenizer puts before it. */
function keptTokens(limit) {
  return limit > 0 ? limit + 2 : Infinity;
}
