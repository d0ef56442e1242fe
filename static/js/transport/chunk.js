/**
 * What every transport yields: one chunk for each event of the server, in the same shape whatever the transport.
 *
 * @typedef {object} Chunk
 * @property {string} text piece of the answer
 * @property {string} reasoning piece of the reasoning before the answer
 * @property {object[]|null} toolCalls pieces of calls, as `delta.tool_calls` of a chat
 * @property {number[]|null} tokenIds null where the server sent none
 * @property {number[]|null} promptTokenIds with the first chunk of an answer, where the server tells them
 * @property {object|null} logprobs as the route sends them
 * @property {string|null} finish null but on the last word of the answer
 * @property {object|null} usage null but once at the end, by the names of the chat route
 * @property {object|null} metrics the server's own timings
 * @property {{id: string, place: string|null}|null} stream where a resumable stream is, once this chunk is read
 * @property {object|null} progress how the request waits, before the first token: the server's `prompt_progress`
 * @property {boolean} isWaiting the connection was lost and is being made anew
 * @property {object|null} raw the server's event as it came
 */

const EMPTY = Object.freeze({
  text: "",
  reasoning: "",
  toolCalls: null,
  tokenIds: null,
  promptTokenIds: null,
  logprobs: null,
  finish: null,
  usage: null,
  metrics: null,
  stream: null,
  progress: null,
  isWaiting: false,
  raw: null,
});

/** @returns {Chunk} */
export function makeChunk(fields) {
  return { ...EMPTY, ...fields };
}

/** The chunk of a payload of `/v1/completions` or `/v1/chat/completions`. @returns {Chunk} */
export function chunkOfPayload(payload, stream = null) {
  const choice = payload.choices?.[0];
  const delta = choice?.delta;
  return makeChunk({
    text: choice?.text ?? delta?.content ?? "",
    reasoning: delta?.reasoning_content ?? "",
    toolCalls: delta?.tool_calls ?? null,
    tokenIds: choice?.token_ids ?? null,
    promptTokenIds: payload.prompt_token_ids ?? choice?.prompt_token_ids ?? null,
    logprobs: choice?.logprobs ?? null,
    finish: choice?.finish_reason ?? null,
    usage: payload.usage ?? null,
    metrics: payload.metrics ?? null,
    progress: payload.prompt_progress ?? null,
    stream,
    raw: payload,
  });
}

/** The chunk of a message of the WebSocket `/v1/stream`. @returns {Chunk} */
export function chunkOfMessage(message, stream = null) {
  if (message.type === "done") {
    const { finish_reason: finish, usage = null, metrics = null } = message;
    return makeChunk({ finish, usage, metrics, stream, raw: message });
  }
  return makeChunk({
    text: message.text ?? "",
    reasoning: message.reasoning_content ?? "",
    toolCalls: message.tool_calls ?? null,
    tokenIds: message.token_ids ?? null,
    promptTokenIds: message.prompt_token_ids ?? null,
    logprobs: message.logprobs ?? null,
    progress: message.prompt_progress ?? null,
    stream,
    raw: message,
  });
}
