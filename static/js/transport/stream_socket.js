/**
 * The client of the WebSocket `/v1/stream`: one socket, many generations at once, told apart by id.
 *
 * Book-keeping: a generation is open from `generate()` until exactly one of three things ends it:
 * the server's `done`, the server's `error` with its id, or the loss of the socket. Whatever arrives
 * for an id that is not open is dropped. A lost socket is opened anew by the next `generate()`.
 */

import { words } from "../words/words.js";
import { ConnectionLost, ServerError } from "./errors.js";

const OPEN = 1; // WebSocket.OPEN, also where a test brings its own class

/**
 * @typedef {{prompt_tokens?: number, completion_tokens?: number, total_tokens?: number}} Usage
 * @typedef {{finishReason: string, usage: Usage|null}} Finish
 * @typedef {{id: string, finished: Promise<Finish>, cancel: () => void}} Generation
 */
export class StreamSocket {
  #url;
  #protocols;
  #WebSocketClass;
  #socket = null;
  #unsent = []; // frames that wait for the socket to open
  #open = new Map(); // id -> {handlers, resolve, reject, isSent}
  #numGenerations = 0;

  /**
   * @param {{url: string, protocols?: () => string[], WebSocketClass?: typeof WebSocket}} options `protocols` is
   *   asked at each opening
   */
  constructor({ url, protocols = () => [], WebSocketClass = globalThis.WebSocket }) {
    this.#url = url;
    this.#protocols = protocols;
    this.#WebSocketClass = WebSocketClass;
  }

  get numOpen() {
    return this.#open.size;
  }

  /**
   * Starts one generation.
   *
   * @param {object} request the parameters of the HTTP routes, with `prompt` or `messages`
   * @param {{onStart?: (message: object) => void, onDelta?: (message: object) => void,
   *          onDone?: (message: object) => void}} handlers
   * @returns {Generation} `finished` rejects with ServerError or ConnectionLost
   */
  generate(request, handlers = {}) {
    return this.#begin({ ...request, type: "generate" }, handlers);
  }

  /**
   * Goes on with a resumable stream.
   *
   * @param {{id: string, place: string|null}} stream
   * @param {object} handlers as of `generate`
   * @returns {Generation}
   */
  resume({ id, place }, handlers = {}) {
    return this.#begin({ type: "resume", stream: id, ...(place === null ? {} : { after: place }) }, handlers);
  }

  #begin(frame, handlers) {
    this.#connect();
    this.#numGenerations += 1;
    const id = `g${this.#numGenerations}`;
    const finished = new Promise((resolve, reject) => {
      this.#open.set(id, { handlers, resolve, reject });
    });
    this.#send({ ...frame, id });
    return { id, finished, cancel: () => this.#cancel(id) };
  }

  /** Closes the socket; what is still open is rejected. */
  close() {
    this.#lose(this.#socket, new ConnectionLost(words.transport.closed));
  }

  #cancel(id) {
    if (!this.#open.has(id)) return;
    const unsent = this.#unsent.findIndex((frame) => frame.id === id);
    if (unsent < 0) {
      this.#send({ type: "cancel", id });
      return;
    }
    // The server has never heard of it, so no `done` will come.
    this.#unsent.splice(unsent, 1);
    this.#end(id).resolve({ finishReason: "abort", usage: null });
  }

  #connect() {
    if (this.#socket !== null) return;
    const socket = new this.#WebSocketClass(this.#url, this.#protocols());
    this.#socket = socket;
    let wasOpen = false;
    socket.onopen = () => {
      wasOpen = true;
      for (const frame of this.#unsent.splice(0)) socket.send(JSON.stringify(frame));
    };
    socket.onmessage = (event) => this.#receive(socket, event.data);
    socket.onclose = (event) => this.#lose(socket, closeReason(event, wasOpen));
  }

  #send(frame) {
    if (this.#socket.readyState === OPEN) this.#socket.send(JSON.stringify(frame));
    else this.#unsent.push(frame);
  }

  #receive(socket, data) {
    if (socket !== this.#socket) return;
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      this.#lose(socket, new ConnectionLost(words.transport.notJson));
      return;
    }
    const generation = this.#open.get(message.id);
    if (generation === undefined) return;
    switch (message.type) {
      case "start":
        generation.handlers.onStart?.(message);
        break;
      case "delta":
      case "progress":
        generation.handlers.onDelta?.(message);
        break;
      case "done":
        generation.handlers.onDone?.(message);
        this.#end(message.id).resolve({ finishReason: message.finish_reason, usage: message.usage ?? null });
        break;
      case "error":
        this.#end(message.id).reject(new ServerError(message.error));
        break;
    }
  }

  /** Takes a generation off the books, so that nothing can end it twice. */
  #end(id) {
    const generation = this.#open.get(id);
    this.#open.delete(id);
    return generation;
  }

  #lose(socket, reason) {
    if (socket === null || socket !== this.#socket) return;
    this.#socket = null;
    this.#unsent = [];
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close();
    for (const id of [...this.#open.keys()]) this.#end(id).reject(reason);
  }
}

function closeReason(event, wasOpen) {
  if (event.reason) return new ConnectionLost(words.transport.closedBecause(event.reason));
  return new ConnectionLost(wasOpen ? undefined : words.transport.unreachable);
}
