/** Goes on with a resumable stream after its connection was lost, again and again, until it ends or hope does. */

import { makeChunk } from "./chunk.js";
import { ConnectionLost, ServerError, isAbort } from "./errors.js";

const DELAYS = [200, 500, 1000, 2000, 4000, 8000, 8000, 8000, 8000, 8000]; // milliseconds; together about 48 s

/**
 * @param {() => AsyncIterable<import("./chunk.js").Chunk>} begin
 * @param {(stream: {id: string, place: string|null}) => AsyncIterable<import("./chunk.js").Chunk>} goOn
 * @param {{signal?: AbortSignal, onStop?: (id: string) => void, delays?: number[]}} options `onStop` tells the server
 *   that nobody comes back
 * @returns {AsyncGenerator<import("./chunk.js").Chunk>}
 */
export async function* reconnecting(begin, goOn, { signal, onStop, delays = DELAYS } = {}) {
  let stream = null;
  let isFinished = false;
  let open = begin;
  for (let numFailures = 0; ; ) {
    try {
      for await (const chunk of open()) {
        numFailures = 0;
        stream = chunk.stream ?? stream;
        isFinished ||= chunk.finish !== null;
        yield chunk;
      }
      return;
    } catch (error) {
      if (isAbort(error, signal)) {
        if (stream !== null) onStop?.(stream.id);
        if (!isFinished) yield makeChunk({ finish: "abort" });
        return;
      }
      if (stream === null || numFailures >= delays.length || !mayPass(error)) throw error;
      yield makeChunk({ isWaiting: true });
      await pause(delays[numFailures], signal);
      numFailures += 1;
      open = () => goOn(stream);
    }
  }
}

/** Whether the server may still have the stream: a restart that keeps streams ends them with such an error. */
function mayPass(error) {
  if (error instanceof ConnectionLost) return true;
  return error instanceof ServerError && (error.status === 503 || error.code === "draining" || error.code === "loading");
}

function pause(delay, signal) {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, delay);
    signal?.addEventListener("abort", end, { once: true });
  });
}
