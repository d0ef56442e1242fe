/** Follows what the engine does: the server's stream of events, opened anew when it breaks, and closed on demand. */

import { ServerError } from "../transport/errors.js";
import { SseParser } from "../transport/sse.js";

const PATH = "/engine/events";
const SOON = 1000; // milliseconds until a broken stream is opened again

export class EngineEvents {
  #fetch;
  #onEvent;
  #onTrouble;
  #model;
  #wait;
  #abort = null;

  /**
   * @param {{onEvent: (event: object) => void, onTrouble: (error: Error) => void, model?: () => string|undefined,
   *          fetch?: typeof fetch, wait?: (milliseconds: number) => Promise<void>}} options `model` names the model whose
   *   engine is followed; without a name it is the server's first
   */
  constructor({
    onEvent,
    onTrouble,
    model = () => undefined,
    fetch = globalThis.fetch.bind(globalThis),
    wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds)),
  }) {
    this.#onEvent = onEvent;
    this.#onTrouble = onTrouble;
    this.#model = model;
    this.#fetch = fetch;
    this.#wait = wait;
  }

  get isOpen() {
    return this.#abort !== null;
  }

  /** Follows until `close()`; a second call changes nothing. */
  async open() {
    if (this.#abort !== null) return;
    const abort = (this.#abort = new AbortController());
    while (!abort.signal.aborted) {
      try {
        await this.#follow(abort.signal);
      } catch (error) {
        if (abort.signal.aborted) return;
        this.#onTrouble(error);
      }
      await this.#wait(SOON);
    }
  }

  close() {
    this.#abort?.abort();
    this.#abort = null;
  }

  async #follow(signal) {
    const model = this.#model();
    const url = model === undefined ? PATH : `${PATH}?model=${encodeURIComponent(model)}`;
    const response = await this.#fetch(url, { cache: "no-store", signal });
    if (!response.ok) throw await ServerError.fromResponse(response);
    const parser = new SseParser();
    const reader = response.body.getReader();
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done || signal.aborted) return;
        for (const event of parser.feed(value)) this.#onEvent(JSON.parse(event.data));
      }
    } finally {
      reader.cancel().catch(() => undefined);
    }
  }
}
