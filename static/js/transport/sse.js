/**
 * Server-sent events: an incremental parser, and a POST request read through it.
 *
 * The parser follows the "event stream interpretation" of the HTML standard. It gives the
 * same events however the bytes are cut into chunks, and looks at each character once.
 */

import { words } from "../words/words.js";
import { ConnectionLost, ServerError, isAbort } from "./errors.js";

const LINE_END = /[\r\n]/g;
const MOST_PARSED = 1 << 16; // bytes that are parsed at once; between two of their events the reader may rest

/**
 * @typedef {{type: string, data: string, lastEventId: string}} ServerSentEvent
 */
export class SseParser {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #line = ""; // the beginning of a line whose end has not arrived
  #atStart = true; // a byte order mark may still come
  #afterCr = false; // a line feed would belong to the carriage return before it
  #data = [];
  #type = "";
  #lastEventId = "";
  retry = null; // milliseconds, where the server has asked for it

  /**
   * @param {string|Uint8Array} chunk the next piece of the stream, cut anywhere
   * @returns {ServerSentEvent[]} the events that it completes
   */
  feed(chunk) {
    let text = typeof chunk === "string" ? chunk : this.#decoder.decode(chunk, { stream: true });
    const events = [];
    if (text === "") return events;
    if (this.#atStart) {
      this.#atStart = false;
      if (text.charCodeAt(0) === 0xfeff) text = text.slice(1);
    }
    let begin = 0;
    if (this.#afterCr && text !== "") {
      this.#afterCr = false;
      if (text[0] === "\n") begin = 1;
    }
    LINE_END.lastIndex = begin;
    for (let match; (match = LINE_END.exec(text)) !== null; ) {
      const end = match.index;
      this.#endLine(this.#line + text.slice(begin, end), events);
      this.#line = "";
      begin = end + 1;
      if (text[end] === "\r") {
        if (begin === text.length) this.#afterCr = true;
        else if (text[begin] === "\n") begin += 1;
      }
      LINE_END.lastIndex = begin;
    }
    this.#line += text.slice(begin);
    return events;
  }

  #endLine(line, events) {
    if (line === "") {
      this.#dispatch(events);
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment, such as the server's ": ping"
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#type = value;
    else if (field === "id" && !value.includes("\0")) this.#lastEventId = value;
    else if (field === "retry" && /^[0-9]+$/.test(value)) this.retry = Number(value);
  }

  #dispatch(events) {
    if (this.#data.length > 0) {
      events.push({
        type: this.#type || "message",
        data: this.#data.join("\n"),
        lastEventId: this.#lastEventId,
      });
    }
    this.#data = [];
    this.#type = "";
  }
}

/**
 * Asks for a stream of events.
 *
 * @param {string} url
 * @param {{body?: object, headers?: object, signal?: AbortSignal, fetch?: typeof fetch}} options with a body it is a POST
 * @returns {Promise<Response>}
 * @throws {ServerError} the server refused
 * @throws {ConnectionLost} it cannot be reached
 * @throws {DOMException} named AbortError, after the signal
 */
export async function openEvents(url, { body, headers = {}, signal, fetch = globalThis.fetch } = {}) {
  const posted = body === undefined
    ? { headers: { Accept: "text/event-stream", ...headers } }
    : {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: "text/event-stream", ...headers },
        body: JSON.stringify(body),
      };
  let response;
  try {
    response = await fetch(url, { ...posted, cache: "no-store", signal });
  } catch (error) {
    if (isAbort(error, signal)) throw error;
    throw new ConnectionLost(words.transport.unreachable);
  }
  if (!response.ok) throw await ServerError.fromResponse(response);
  return response;
}

/**
 * Yields the JSON payloads of an answer's events with their ids, until `[DONE]`; an answer without content (204)
 * has none. Leaving the loop early, or aborting the signal, closes the connection, which tells the server to stop
 * generating, unless the stream is resumable.
 *
 * @param {Response} response
 * @param {AbortSignal} [signal]
 * @returns {AsyncGenerator<{payload: object, id: string}>}
 * @throws {ServerError} the server sent an error event
 * @throws {ConnectionLost} the stream ended without `[DONE]`
 * @throws {DOMException} named AbortError, after the signal
 */
export async function* readEvents(response, signal) {
  if (response.status === 204) return;
  const parser = new SseParser();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { value, done } = await readChunk(reader, signal);
      if (done) throw new ConnectionLost();
      for (let at = 0; at < value.length; at += MOST_PARSED) {
        for (const event of parser.feed(value.subarray(at, at + MOST_PARSED))) {
          if (event.data === "[DONE]") return;
          const payload = JSON.parse(event.data);
          if (payload.error) throw new ServerError(payload.error);
          yield { payload, id: event.lastEventId };
        }
      }
    }
  } finally {
    // Frees the connection when the loop is left early; after the end it does nothing.
    reader.cancel().catch(() => undefined);
  }
}

async function readChunk(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (isAbort(error, signal)) throw error;
    throw new ConnectionLost();
  }
}
