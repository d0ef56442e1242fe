/** One answer from the request to its end: the transport read, the text gathered, the meter kept. */

import { FrameText } from "./frame_text.js";
import { Meter, describe } from "./meter.js";

const METER_INTERVAL = 200; // milliseconds between two looks at the running figures

/**
 * @typedef {{finish: string, error: Error|null, figures: string[], numTokens: number}} Outcome
 */
export class Generation {
  #abort = new AbortController();

  /** Ends the answer early; `run()` then resolves with `finish: "abort"`. */
  stop() {
    this.#abort.abort();
  }

  /**
   * Never rejects: an error is part of the outcome, beside the text that came before it.
   *
   * @param {{stream: Function}} transport
   * @param {import("../transport/transport.js").Task} task
   * @param {{onText: (text: string) => void, onFigures: (figures: string[]) => void}} handlers
   * @returns {Promise<Outcome>}
   */
  async run(transport, task, { onText, onFigures }) {
    const text = new FrameText(onText);
    const meter = new Meter(performance.now());
    let lastFigures = performance.now();
    let finish = "error";
    let error = null;
    try {
      for await (const chunk of transport.stream(task, { signal: this.#abort.signal })) {
        const numTokens = chunk.tokenIds?.length ?? (chunk.text === "" ? 0 : 1);
        const now = performance.now();
        if (numTokens > 0) meter.add(numTokens, now);
        if (chunk.usage?.completion_tokens !== undefined) meter.correct(chunk.usage.completion_tokens);
        if (chunk.finish !== null) finish = chunk.finish;
        text.push(chunk.text);
        if (now - lastFigures >= METER_INTERVAL) {
          lastFigures = now;
          onFigures(describe(meter));
        }
      }
    } catch (thrown) {
      error = thrown;
      finish = "error";
    }
    text.flush();
    const figures = describe(meter, finish);
    onFigures(figures);
    return { finish, error, figures, numTokens: meter.numTokens };
  }
}
