/** Follows what the engine does: the server's stream of events, opened anew when it breaks, and closed on demand. */

import { ServerError } from "../transport/errors.js";
import { SseParser } from "../transport/sse.js";

const URL = "/engine/events";
const SOON = 1000; // milliseconds until a broken stream is opened again

export class EngineEvents {
  #fetch;
  #onEvent;
  #onTrouble;
  #wait;
  #abort = null;

  /**
   * @param {{onEvent: (event: object) => void, onTrouble: (error: Error) => void, fetch?: typeof fetch,
   *          wait?: (milliseconds: number) => Promise<void>}} options
   */
  constructor({
    onEvent,
    onTrouble,
    fetch = globalThis.fetch.bind(globalThis),
    wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds)),
  }) {
    this.#onEvent = onEvent;
    this.#onTrouble = onTrouble;
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
    const response = await this.#fetch(URL, { cache: "no-store", signal });
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
