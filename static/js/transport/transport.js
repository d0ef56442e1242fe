/**
 * Two ways to the same tokens; `responses_transport.js` is the third. A transport has
 * `stream(task, {signal})`, an async generator of chunks (see `chunk.js`), and, where a stream survives its
 * connection, `resume(stream, {signal})`, which goes on after a reload with what the last chunk called `stream`.
 * A lost connection is made anew without a word but for chunks that say `isWaiting`. Aborting the signal is no
 * error: the generator then ends with `finish: "abort"`. What else goes wrong is thrown as ServerError or ConnectionLost.
 *
 * @typedef {{prompt: string|number[]} | {messages: object[]}} Ask
 * @typedef {Ask & {model?: string, max_tokens?: number}} Task with any other parameters by their wire names
 */

import { chunkOfMessage, chunkOfPayload, makeChunk } from "./chunk.js";
import { reconnecting } from "./reconnecting.js";
import { openEvents, readEvents } from "./sse.js";

const ALWAYS = { return_token_ids: true, resumable: true, return_progress: true };

export class SseTransport {
  #fetch;
  #delays;

  constructor({ fetch = globalThis.fetch.bind(globalThis), delays } = {}) {
    this.#fetch = fetch;
    this.#delays = delays;
  }

  /** @param {Task} task @returns {AsyncGenerator<import("./chunk.js").Chunk>} */
  stream(task, { signal } = {}) {
    const url = "messages" in task ? "/v1/chat/completions" : "/v1/completions";
    const body = { ...ALWAYS, ...task, stream: true, stream_options: { include_usage: true } };
    return this.#follow(() => this.#read(() => this.#ask(url, body, signal), null, signal), signal);
  }

  /** @param {{id: string, place: string|null}} stream @returns {AsyncGenerator<import("./chunk.js").Chunk>} */
  resume(stream, { signal } = {}) {
    return this.#follow(() => this.#goOn(stream, signal), signal);
  }

  #follow(begin, signal) {
    return reconnecting(begin, (stream) => this.#goOn(stream, signal), {
      signal,
      delays: this.#delays,
      onStop: (id) => {
        // Without this word, the generation would go on for as long as somebody might come back.
        this.#fetch(`/v1/streams/${id}`, { method: "DELETE", keepalive: true }).catch(() => undefined);
      },
    });
  }

  #goOn({ id, place }, signal) {
    const headers = place === null ? {} : { "Last-Event-ID": place };
    const open = () => openEvents(`/v1/streams/${id}`, { headers, signal, fetch: this.#fetch });
    return this.#read(open, { id, place }, signal);
  }

  /**
   * Asks for an answer. An abort before the page knows the stream's id is told by the request's: the server may have
   * begun already, and would go on for as long as somebody might come back. The connection is closed behind that word.
   */
  #ask(url, body, signal) {
    const requestId = [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(16)).join("-");
    const connection = new AbortController();
    let isOpen = false;
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      signal?.addEventListener("abort", () => {
        if (isOpen) return connection.abort();
        reject(signal.reason);
        return this.#fetch(`/v1/requests/${requestId}/cancel`, { method: "POST", keepalive: true })
          .catch(() => undefined).finally(() => connection.abort());
      }, { once: true });
      openEvents(url, { body, headers: { "X-Request-Id": requestId }, signal: connection.signal, fetch: this.#fetch })
        .then((response) => {
          isOpen = true;
          resolve(response);
        }, reject);
    });
  }

  async *#read(open, stream, signal) {
    const response = await open();
    const id = response.headers.get("X-Eagre-Stream") ?? stream?.id ?? "none";
    const isKept = id !== "none";
    if (isKept) yield makeChunk({ stream: { id, place: stream?.place ?? null } });
    for await (const event of readEvents(response, signal)) {
      yield chunkOfPayload(event.payload, isKept ? { id, place: event.id || null } : null);
    }
  }
}

export class SocketTransport {
  #socket;
  #delays;

  /** @param {import("./stream_socket.js").StreamSocket} socket */
  constructor(socket, { delays } = {}) {
    this.#socket = socket;
    this.#delays = delays;
  }

  /** @param {Task} task @returns {AsyncGenerator<import("./chunk.js").Chunk>} */
  stream(task, { signal } = {}) {
    return this.#follow((handlers) => this.#socket.generate({ ...ALWAYS, ...task }, handlers), signal);
  }

  /** @param {{id: string, place: string|null}} stream @returns {AsyncGenerator<import("./chunk.js").Chunk>} */
  resume(stream, { signal } = {}) {
    return this.#follow((handlers) => this.#socket.resume(stream, handlers), signal, stream);
  }

  #follow(begin, signal, stream = null) {
    const goOn = (known) => this.#read((handlers) => this.#socket.resume(known, handlers), known, signal);
    return reconnecting(() => this.#read(begin, stream, signal), goOn, { signal, delays: this.#delays });
  }

  async *#read(begin, known, signal) {
    if (signal?.aborted) {
      yield makeChunk({ finish: "abort" });
      return;
    }
    const arrived = [];
    let wake = () => undefined;
    let isFinished = false;
    let id = known?.id ?? null;
    const push = (message) => {
      id = message.stream ?? id;
      const stream = id === null ? null : { id, place: message.place ?? null };
      arrived.push(chunkOfMessage(message, stream));
      wake();
    };
    let isTold = false;
    const generation = begin({
      onStart: (message) => message.stream && push(message),
      onDelta: push,
      onDone: (message) => {
        isTold = true;
        push(message);
      },
    });
    const finished = generation.finished.then(({ finishReason }) => {
      if (!isTold) push({ type: "done", finish_reason: finishReason }); // cancelled before the server heard of it
    }).finally(() => {
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
