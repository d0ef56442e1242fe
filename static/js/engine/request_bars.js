/**
 * One bar for each request: its time in the queue, the pieces of its prompt as they were computed, and its tokens.
 *
 * The stream tells counts at moments. A piece of a prompt is drawn where its count grew between two of them. A request
 * that already answers when it is first seen has a part that nobody has seen: it may be prompt or tokens.
 */

const MOST_BARS = 40;

/**
 * @typedef {{key: string, id: string|null, state: string, submitted: number, admitted: number|null, firstToken: number|null,
 *            unseenUntil: number|null, ended: number|null, prompt: number, cached: number, output: number,
 *            pieces: {from: number, to: number, tokens: number}[]}} Bar times in milliseconds on the engine's clock
 */
export class RequestBars {
  #bars = new Map(); // key -> Bar, the oldest first
  #last = -Infinity;

  /** @param {object} event of the stream */
  add(event) {
    const now = event.now_ms;
    if (now < this.#last) this.#bars.clear(); // another engine
    const since = Math.max(this.#last, 0);
    this.#last = now;
    const seen = new Set();
    for (const request of [...event.slots, ...event.queue]) {
      seen.add(request.key);
      this.#note(request, now, since);
    }
    for (const bar of this.#bars.values()) {
      if (bar.ended === null && !seen.has(bar.key)) bar.ended = now;
    }
    for (const [key, bar] of this.#bars) {
      if (this.#bars.size <= MOST_BARS) break;
      if (bar.ended !== null) this.#bars.delete(key);
    }
  }

  /** @returns {Bar[]} the latest first */
  get bars() {
    return [...this.#bars.values()].reverse();
  }

  get now() {
    return this.#last;
  }

  #note(request, now, since) {
    let bar = this.#bars.get(request.key);
    if (bar === undefined) {
      const submitted = now - request.age_ms;
      bar = {
        key: request.key, id: request.id, state: "", submitted, admitted: null, firstToken: null, unseenUntil: null,
        ended: null, prompt: request.prompt, cached: 0, output: 0, pieces: [], computed: 0,
      };
      this.#bars.set(request.key, bar);
      if (request.output > 0) {
        bar.unseenUntil = now;
        bar.computed = request.computed;
      }
    }
    if (request.queue_ms !== null) bar.admitted = bar.submitted + request.queue_ms;
    const done = request.computed;
    if (bar.admitted !== null && done > Math.max(bar.computed, request.cached)) {
      const from = Math.max(since, bar.admitted);
      bar.pieces.push({ from, to: now, tokens: done - Math.max(bar.computed, request.cached) });
    }
    if (request.output > 0) bar.firstToken ??= now;
    if (request.state === "ending") bar.ended ??= now;
    bar.computed = done;
    bar.id ??= request.id;
    bar.state = request.state;
    bar.cached = request.cached;
    bar.output = request.output;
  }
}

/**
 * The parts of a bar, as shares of the shown time.
 *
 * @param {Bar} bar @param {number} begin @param {number} end milliseconds on the engine's clock
 * @returns {{kind: "queue"|"unseen"|"prompt"|"tokens", from: number, to: number}[]} from 0 to 1
 */
export function partsOf(bar, begin, end) {
  const place = (moment) => Math.min(Math.max((moment - begin) / (end - begin), 0), 1);
  const over = bar.ended ?? end;
  const parts = [];
  const add = (kind, from, to) => {
    if (place(to) > place(from)) parts.push({ kind, from: place(from), to: place(to) });
  };
  add("queue", bar.submitted, bar.admitted ?? over);
  if (bar.unseenUntil !== null) add("unseen", bar.admitted ?? bar.submitted, bar.unseenUntil);
  for (const { from, to } of bar.pieces) add("prompt", from, Math.min(to, bar.firstToken ?? to));
  if (bar.firstToken !== null) add("tokens", bar.firstToken, over);
  return parts;
}
