import assert from "node:assert/strict";
import { test } from "node:test";

import { Steps } from "../../../../static/js/engine/lanes.js";

// number, rows, tokens; schedule, dispatch, dispatched, wait, commit, committed; device began, ended, idle until then
const FIRST = [0, 1, 1, 0, 1, 2, 5, 10, 11, 2, 10, 0];
const SECOND = [1, 1, 1, 3, 4, 5, 12, 25, 26, 15, 24, 4]; // the device waited from 11 to 15
const THIRD = [2, 1, 1, 13, 14, 16, 27, 34, 35, 24, 34, 4];

test("steps come once, whatever the events repeat", () => {
  const steps = new Steps();
  steps.add([FIRST, SECOND]);
  steps.add([SECOND, THIRD]);
  assert.equal(steps.length, 3);
  steps.add([FIRST]); // the engine was started anew
  assert.equal(steps.length, 1);
});

test("the slices lie in their lanes, and a gap of the device is shown", () => {
  const steps = new Steps();
  steps.add([FIRST, SECOND, THIRD]);
  const { begin, slices } = steps.slices(35);
  assert.equal(begin, 0);
  const of = (kind) => slices.filter((slice) => slice.kind === kind).map(({ lane, from, to }) => [lane, from, to]);
  assert.deepEqual(of("step"), [[1, 2, 10], [1, 15, 24], [1, 24, 34]]);
  assert.deepEqual(of("idle"), [[1, 11, 15]]);
  assert.deepEqual(of("schedule"), [[0, 0, 1], [0, 3, 4], [0, 13, 14]]);
  assert.ok(slices.every(({ from, to }) => from >= 0 && to > from));
});

test("no time counts as idle in which nothing was to be done", () => {
  const steps = new Steps();
  const late = SECOND.map((value, at) => (at >= 3 && at < 11 ? value + 1000 : value));
  steps.add([FIRST, late]);
  const [idle] = steps.slices(2000).slices.filter(({ kind }) => kind === "idle");
  assert.equal(idle.to - idle.from, 4);
});

test("what ended before the shown time is left out", () => {
  const steps = new Steps();
  steps.add([FIRST, SECOND, THIRD]);
  assert.ok(steps.slices(5).slices.every(({ step }) => step === 2));
});
