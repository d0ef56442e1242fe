/** The two lanes of the pipeline: what host and device did in the last steps, and where the device stood idle. */

import { clear } from "../page/canvas.js";
import { words } from "../words/words.js";

// Where each moment stands in a step of the stream.
const [STEP, ROWS, TOKENS, SCHEDULED, DISPATCHING, DISPATCHED, WAITING, COMMITTING, COMMITTED, BEGAN, ENDED, IDLE] = Array(12).keys();
const MOST_STEPS = 400;

export class Steps {
  #steps = [];

  /** @param {number[][]} steps as they come with an event */
  add(steps) {
    const last = this.#steps.at(-1)?.[STEP] ?? -1;
    if (steps.length > 0 && steps.at(-1)[STEP] < last) this.#steps = []; // another engine
    this.#steps.push(...steps.filter((step) => step[STEP] > (this.#steps.at(-1)?.[STEP] ?? -1)));
    if (this.#steps.length > MOST_STEPS) this.#steps.splice(0, this.#steps.length - MOST_STEPS);
  }

  get length() {
    return this.#steps.length;
  }

  /**
   * The slices of the last steps.
   *
   * @param {number} span milliseconds that are shown, up to the end of the last step
   * @returns {{begin: number, slices: {lane: number, kind: string, from: number, to: number, step: number, rows: number,
   *            tokens: number}[]}} lane 0 is the host's, 1 the device's; times in milliseconds since `begin`
   */
  slices(span) {
    const last = this.#steps.at(-1);
    if (last === undefined) return { begin: 0, slices: [] };
    const end = Math.max(last[COMMITTED], last[ENDED]);
    const begin = end - span;
    const slices = [];
    this.#steps.forEach((step, at) => {
      const add = (lane, kind, from, to) => {
        if (to <= begin || to <= from) return;
        slices.push({
          lane, kind, from: Math.max(from - begin, 0), to: to - begin, step: step[STEP], rows: step[ROWS], tokens: step[TOKENS],
        });
      };
      add(0, "schedule", step[SCHEDULED], step[DISPATCHING]);
      add(0, "dispatch", step[DISPATCHING], step[DISPATCHED]);
      add(0, "wait", step[WAITING], step[COMMITTING]);
      add(0, "commit", step[COMMITTING], step[COMMITTED]);
      // The server counts as idle only the time in which work waited.
      const before = this.#steps[at - 1];
      if (before?.[STEP] === step[STEP] - 1) add(1, "idle", step[BEGAN] - (step[IDLE] - before[IDLE]), step[BEGAN]);
      add(1, "step", step[BEGAN], step[ENDED]);
    });
    return { begin, slices };
  }

  /** A span that shows about twelve steps, in round milliseconds. */
  get goodSpan() {
    const shown = this.#steps.slice(-12);
    if (shown.length < 2) return 50;
    const span = shown.at(-1)[COMMITTED] - shown[0][SCHEDULED];
    return [5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000].find((round) => round >= span) ?? 10_000;
  }
}

const LANE = 26; // pixels of height
const GAP = 8;
const HEAD = 14;

/** @param {CanvasRenderingContext2D} context @param {Object<string, string>} colours by kind, with `text` and `line` */
export function drawLanes(context, steps, width, colours) {
  const span = steps.goodSpan;
  const height = HEAD + 2 * LANE + GAP + 16;
  clear(context, width, height);
  context.font = "11px system-ui, sans-serif";
  const left = 46;
  const perMs = (width - left) / span;
  context.fillStyle = colours.text;
  [words.engine.host, words.engine.device].forEach((name, lane) => context.fillText(name, 0, HEAD + lane * (LANE + GAP) + LANE / 2 + 4));
  context.fillStyle = colours.line;
  for (const lane of [0, 1]) context.fillRect(left, HEAD + lane * (LANE + GAP), width - left, LANE);
  for (const { lane, kind, from, to, step } of steps.slices(span).slices) {
    const top = HEAD + lane * (LANE + GAP);
    const x = left + from * perMs;
    const wide = Math.max((to - from) * perMs, 0.75);
    context.fillStyle = kind === "step" && step % 2 === 1 ? colours.step2 : colours[kind];
    context.fillRect(x, kind === "idle" ? top + LANE - 7 : top, wide, kind === "idle" ? 7 : LANE);
    if (kind === "step" && wide > 34) {
      context.fillStyle = colours.onStep;
      context.fillText(String(step), x + 4, top + LANE / 2 + 4);
    }
  }
  context.fillStyle = colours.text;
  context.fillText("0", left, height - 3);
  const label = `${span} ms`;
  context.fillText(label, width - context.measureText(label).width, height - 3);
}
