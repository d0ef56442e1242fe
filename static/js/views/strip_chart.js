/** The gaps of one answer on a canvas: a column for each moment, as high as its gap is long, with lines at p50 and p99. */

import { clear } from "../page/canvas.js";
import { colourOf } from "../page/theme.js";
import { columnsOf, gapsOf, summary } from "./latency.js";

const HEIGHT = 84;
const FOOT = 15;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {object[]} tokens
 * @param {{span: number, tallest: number}} axis of all charts that are to be compared
 */
export function drawStrip(canvas, tokens, { span, tallest }) {
  const width = canvas.clientWidth;
  if (width === 0) return;
  const context = canvas.getContext("2d");
  clear(context, width, HEIGHT);
  const room = HEIGHT - FOOT;
  const high = (gap) => Math.max((gap / tallest) * (room - 6), 1);
  const { first, p50, p99 } = summary(tokens);
  context.fillStyle = colourOf("--tint");
  context.fillRect(0, 0, width, room);
  if (first !== null) {
    context.fillStyle = colourOf("--lane-schedule");
    context.fillRect(0, 0, Math.min((first / span) * width, width), room);
  }
  context.fillStyle = colourOf("--accent");
  columnsOf(gapsOf(tokens), Math.floor(width), span).forEach((gap, x) => {
    if (gap > 0) context.fillRect(x, room - high(gap), 1, high(gap));
  });
  context.font = "11px system-ui, sans-serif";
  for (const [name, gap] of [["p50", p50], ["p99", p99]]) {
    if (gap === null) continue;
    context.fillStyle = colourOf("--warn");
    context.fillRect(0, room - high(gap), width, 1);
    context.fillText(name, width - 24, Math.max(room - high(gap) - 2, 10));
  }
  context.fillStyle = colourOf("--soft");
  context.fillText("0", 0, HEIGHT - 3);
  const end = span < 10_000 ? `${Math.round(span)} ms` : `${(span / 1000).toFixed(1)} s`;
  context.fillText(end, width - context.measureText(end).width, HEIGHT - 3);
}

/** One axis for several answers. */
export function sharedAxis(answers) {
  const ends = answers.map(({ tokens }) => tokens.findLast(({ at }) => at !== null)?.at ?? 0);
  const gaps = answers.flatMap(({ tokens }) => gapsOf(tokens).map(({ gap }) => gap));
  return { span: Math.max(1, ...ends), tallest: Math.max(1, gaps.reduce((most, gap) => Math.max(most, gap), 0)) };
}
