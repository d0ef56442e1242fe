/** The pages of the cache as a map: one cell for each, in order of their ids. */

import { clear } from "../page/canvas.js";

export const STATES = ["free", "cached", "active", "shared"];
const LETTERS = "fcas";
const CELL = 9; // pixels of a cell's side, the line around it included, where there is room
const LEAST_CELL = 3;

/** "2a3s" to [2, 2, 3, 3, 3], by the index of each state in STATES. */
export function parseMap(map) {
  const runs = [...map.matchAll(/(\d*)([fcas])/g)].map(([, count, letter]) => [Number(count || 1), LETTERS.indexOf(letter)]);
  const states = new Uint8Array(runs.reduce((sum, [count]) => sum + count, 0));
  let at = 0;
  for (const [count, state] of runs) {
    states.fill(state, at, at + count);
    at += count;
  }
  return states;
}

/** The largest cells with which so many fit into a width and a height that should not be passed. */
export function fit(numCells, width, mostHeight) {
  for (let cell = CELL; ; cell -= 1) {
    const columns = Math.max(1, Math.floor(width / cell));
    const rows = Math.ceil(numCells / columns);
    if (rows * cell <= mostHeight || cell === LEAST_CELL) return { cell, columns, rows };
  }
}

/** @param {CanvasRenderingContext2D} context @param {string[]} colours by state */
export function drawMap(context, states, width, mostHeight, colours) {
  const { cell, columns, rows } = fit(states.length, width, mostHeight);
  clear(context, width, Math.max(rows * cell, cell));
  for (let state = 0; state < STATES.length; state += 1) {
    context.fillStyle = colours[state];
    for (let at = states.indexOf(state); at >= 0; at = states.indexOf(state, at + 1)) {
      context.fillRect((at % columns) * cell, Math.floor(at / columns) * cell, cell - 1, cell - 1);
    }
  }
}
