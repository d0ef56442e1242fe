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
   * @param {(signal: AbortSignal) => AsyncIterable<import("../transport/chunk.js").Chunk>} open
   * @param {{onText?: (text: string) => void, onFigures: (figures: string[]) => void,
   *          onChunk?: (chunk: import("../transport/chunk.js").Chunk, at: number) => void}} handlers `onText` is called
   *   once for each frame, `onChunk` for each chunk, with the milliseconds since the request
   * @returns {Promise<Outcome>}
   */
  async run(open, { onText = () => undefined, onFigures, onChunk = () => undefined }) {
    const text = new FrameText(onText);
    const start = performance.now();
    const meter = new Meter(start);
    let lastFigures = start;
    let finish = "error";
    let error = null;
    try {
      for await (const chunk of open(this.#abort.signal)) {
        const now = performance.now();
        const numTokens = chunk.tokenIds?.length ?? (chunk.text === "" && chunk.reasoning === "" ? 0 : 1);
        onChunk(chunk, now - start);
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
