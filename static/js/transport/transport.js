/**
 * Two ways to the same tokens. Both transports are one async generator,
 * `stream(task, {signal})`, of chunks `{text, tokenIds, finish, usage}`:
 * `tokenIds` is null where the server did not send any, `finish` is null but on the last word of
 * the answer, `usage` is null but once at the end. Aborting the signal is no error: the generator
 * then ends with `finish: "abort"`. What else goes wrong is thrown as ServerError or ConnectionLost.
 *
 * @typedef {{prompt: string} | {messages: {role: string, content: string}[]}} Ask
 * @typedef {Ask & {model?: string, max_tokens: number, temperature: number, top_p: number, seed?: number}} Task
 * @typedef {{text: string, tokenIds: number[]|null, finish: string|null, usage: object|null}} Chunk
 */

import { isAbort } from "./errors.js";
import { postEvents } from "./sse.js";

const ABORTED = Object.freeze({ text: "", tokenIds: null, finish: "abort", usage: null });

export class SseTransport {
  #fetch;

  constructor({ fetch = globalThis.fetch.bind(globalThis) } = {}) {
    this.#fetch = fetch;
  }

  /** @param {Task} task @returns {AsyncGenerator<Chunk>} */
  async *stream(task, { signal } = {}) {
    const url = "messages" in task ? "/v1/chat/completions" : "/v1/completions";
    const body = { ...task, stream: true, stream_options: { include_usage: true }, return_token_ids: true };
    try {
      for await (const payload of postEvents(url, body, { signal, fetch: this.#fetch })) {
        yield chunkOf(payload);
      }
    } catch (error) {
      if (!isAbort(error, signal)) throw error;
      yield ABORTED;
    }
  }
}

function chunkOf(payload) {
  const choice = payload.choices?.[0];
  return {
    text: choice?.text ?? choice?.delta?.content ?? "",
    tokenIds: choice?.token_ids ?? null,
    finish: choice?.finish_reason ?? null,
    usage: payload.usage ?? null,
  };
}

export class SocketTransport {
  #socket;

  /** @param {import("./stream_socket.js").StreamSocket} socket */
  constructor(socket) {
    this.#socket = socket;
  }

  /** @param {Task} task @returns {AsyncGenerator<Chunk>} */
  async *stream(task, { signal } = {}) {
    if (signal?.aborted) {
      yield ABORTED;
      return;
    }
    const arrived = [];
    let wake = () => undefined;
    let isFinished = false;
    const push = (chunk) => {
      arrived.push(chunk);
      wake();
    };
    const generation = this.#socket.generate(task, {
      onDelta: (delta) => push({ text: delta.text, tokenIds: delta.token_ids ?? null, finish: null, usage: null }),
    });
    const finished = generation.finished.then(
      ({ finishReason, usage }) => push({ text: "", tokenIds: null, finish: finishReason, usage }),
    ).finally(() => {
      isFinished = true;
      wake();
    });
    finished.catch(() => undefined); // awaited below; a reader that left early does not care
    signal?.addEventListener("abort", generation.cancel, { once: true });
    try {
      while (!isFinished || arrived.length > 0) {
        if (arrived.length === 0) await new Promise((resolve) => (wake = resolve));
        yield* arrived.splice(0);
      }
      await finished;
    } finally {
      signal?.removeEventListener("abort", generation.cancel);
      generation.cancel(); // a reader that leaves early leaves no generation behind
    }
  }
}
