/** One answer from the request to its end: the transport read, the text gathered, the meter kept, the wait described. */

import { words } from "../words/words.js";
import { FrameText } from "./frame_text.js";
import { Meter, figuresOf } from "./meter.js";
import { measuredOf } from "./recorder.js";
import { Waiting } from "./waiting.js";

const METER_INTERVAL = 200; // milliseconds between two looks at the running figures
const MOST_AT_ONCE = 8; // milliseconds of work without a rest: one read may bring thousands of events
const REST = 2; // milliseconds between two chunks in which the page had time for a frame

/**
 * @typedef {{finish: string, error: Error|null, figures: import("../words/figures.js").Figure[], numTokens: number,
 *   measured: import("./recorder.js").Measured}} Outcome
 */
export class Generation {
  #abort = new AbortController();
  #before;

  /** @param {object|null} node the answer's node, where it has one: its stream may have begun in an earlier view */
  constructor(node = null) {
    this.#before = node === null ? null : measuredOf(node);
  }

  /** Ends the answer early; `run()` then resolves with `finish: "abort"`. */
  stop() {
    this.#abort.abort();
  }

  /**
   * Never rejects: an error is part of the outcome, beside the text that came before it.
   *
   * @param {(signal: AbortSignal) => AsyncIterable<import("../transport/chunk.js").Chunk>} open
   * @param {{onText?: (text: string) => void, onFigures: (figures: import("../words/figures.js").Figure[]) => void, onWaiting: (text: string) => void,
   *          onChunk?: (chunk: import("../transport/chunk.js").Chunk, at: number) => void}} handlers `onText` is called
   *   once for each frame, `onChunk` for each chunk, with the milliseconds since the request (NaN where that was in an
   *   earlier view), `onWaiting` with what is being waited for, or an empty text
   * @param {() => Promise<void>} prepare what is done before the request is sent, and counts in no figure
   * @returns {Promise<Outcome>}
   */
  async run(open, { onText = () => undefined, onFigures, onWaiting, onChunk = () => undefined }, prepare = async () => undefined) {
    await prepare();
    const text = new FrameText(onText);
    const waiting = new Waiting(onWaiting);
    const start = performance.now();
    const meter = new Meter(start, this.#before);
    let lastFigures = start;
    let workBegan = start;
    let workEnded = start;
    let finish = "error";
    let error = null;
    waiting.start();
    try {
      for await (const chunk of open(this.#abort.signal)) {
        const now = performance.now();
        if (now - workEnded > REST) workBegan = now;
        const hasText = chunk.text !== "" || chunk.reasoning !== "";
        const numTokens = chunk.tokenIds?.length ?? (hasText ? 1 : 0);
        if (chunk.isWaiting) {
          meter.interrupt();
          waiting.start(words.answer.reconnecting);
        }
        if (chunk.progress !== null) waiting.tell(chunk.progress);
        else if (hasText || numTokens > 0 || chunk.toolCalls !== null) waiting.stop();
        onChunk(chunk, this.#before?.isResumed ? NaN : now - start);
        if (numTokens > 0) meter.add(numTokens, now);
        if (chunk.usage?.completion_tokens !== undefined) meter.correct(chunk.usage.completion_tokens);
        if (chunk.finish !== null) finish = chunk.finish;
        text.push(chunk.text);
        if (now - lastFigures >= METER_INTERVAL) {
          lastFigures = now;
          onFigures(figuresOf(meter));
        }
        workEnded = performance.now();
        if (workEnded - workBegan > MOST_AT_ONCE) {
          await new Promise((resolve) => setTimeout(resolve));
          workBegan = workEnded = performance.now();
        }
      }
    } catch (thrown) {
      error = thrown;
      finish = "error";
    }
    waiting.stop();
    text.flush();
    const figures = figuresOf(meter, finish);
    onFigures(figures);
    return { finish, error, figures, numTokens: meter.numTokens, measured: meter.measured };
  }
}
