import assert from "node:assert/strict";
import { test } from "node:test";

import { columnsOf, gapsOf, percentile, summary } from "../../../../static/js/views/latency.js";

const at = (...times) => times.map((time) => ({ at: time }));

test("percentiles are values that were measured", () => {
  const values = [...Array(100).keys()].map((value) => value + 1).reverse();
  assert.deepEqual([percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1), percentile([], 0.5)], [50, 99, 100, null]);
});

test("tokens that came together have no gap between them", () => {
  assert.deepEqual(gapsOf(at(10, 10, 15, 30)).map(({ gap }) => gap), [5, 15]);
});

test("rates count the tokens after the first", () => {
  const { first, overall, now, p50 } = summary(at(100, 200, 300, 400, 500));
  assert.deepEqual([first, overall, now, p50], [100, 10, 10, 100]);
  assert.equal(summary([]).first, null);
  assert.equal(summary(at(5)).overall, null);
});

test("each column has the longest gap that ends in it", () => {
  const columns = columnsOf([{ at: 1, gap: 1 }, { at: 4, gap: 3 }, { at: 4.5, gap: 0.5 }, { at: 10, gap: 5 }], 5, 10);
  assert.deepEqual([...columns], [1, 0, 3, 0, 5]);
});

test("times that nobody has measured make no gaps and no rates", () => {
  const tokens = [10, 20, 30, null, null].map((at) => ({ at }));
  assert.deepEqual(gapsOf(tokens).map(({ gap }) => gap), [10, 10]);
  const { first, p50, now, overall, numTokens } = summary(tokens);
  assert.deepEqual([first, p50, now, overall, numTokens], [10, 10, null, null, 5]);
  assert.equal(gapsOf([null, 5].map((at) => ({ at }))).length, 0);
});
