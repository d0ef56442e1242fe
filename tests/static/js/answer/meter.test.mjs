import assert from "node:assert/strict";
import { test } from "node:test";

import { Meter, figuresOf } from "../../../../static/js/answer/meter.js";
import { tellFigures } from "../../../../static/js/words/figures.js";

const describe = (meter, finish) => tellFigures(figuresOf(meter, finish));

test("the rate counts the tokens after the first chunk, over the time since it", () => {
  const meter = new Meter(1000);
  assert.deepEqual([meter.timeToFirstToken, meter.tokensPerSecond, meter.numTokens], [null, null, 0]);
  meter.add(3, 1080);
  assert.deepEqual([meter.timeToFirstToken, meter.tokensPerSecond, meter.numTokens], [80, null, 3]);
  meter.add(1, 1081);
  assert.equal(meter.tokensPerSecond, null, "a burst has no rate");
  meter.add(4, 1180);
  assert.equal(meter.tokensPerSecond, 50);
  meter.correct(9);
  assert.equal(meter.tokensPerSecond, 60);
});

test("the figures in words", () => {
  const meter = new Meter(0);
  assert.deepEqual(describe(meter), ["0 tokens"]);
  meter.add(1, 42.4);
  assert.deepEqual(describe(meter), ["first token 42 ms", "1 token"]);
  meter.add(1, 1042.4);
  assert.deepEqual(describe(meter, "length"), ["first token 42 ms", "1.0 tokens/s", "stopped at 2 tokens"]);
  assert.deepEqual(describe(meter, "tool_calls").slice(-2), ["2 tokens", "called a tool"]);
  assert.equal(describe(meter, "something new").at(-1), "something new");
});

test("of an answer that is gone on with, what was measured stays and nothing is made up", () => {
  const meter = new Meter(5000, { timeToFirstToken: 477, numTokens: 12, isResumed: true, earlier: null });
  assert.deepEqual(describe(meter), ["first token 477 ms", "12 tokens"]);
  meter.add(30, 5040); // what came while the page was loaded
  meter.add(1, 5300);
  meter.correct(43);
  assert.deepEqual(describe(meter, "stop"), ["first token 477 ms", "43 tokens", "complete"]);
  const unknown = new Meter(5000, { timeToFirstToken: null, numTokens: 0, isResumed: true, earlier: null });
  unknown.add(1, 5010);
  assert.deepEqual(describe(unknown), ["1 token"]);
});

test("a connection that was lost leaves no rate, and no time to a first token that came after it", () => {
  const meter = new Meter(0);
  meter.add(1, 100);
  meter.add(9, 1100);
  meter.interrupt();
  meter.add(90, 1200);
  assert.deepEqual([meter.timeToFirstToken, meter.tokensPerSecond], [100, null]);
  const early = new Meter(0);
  early.interrupt();
  early.add(5, 1000);
  assert.equal(early.timeToFirstToken, null);
});

test("of an answer that another request continues, the figures are those of the whole", () => {
  const first = new Meter(0);
  first.add(1, 100);
  first.add(9, 1100);
  assert.deepEqual(first.measured, { numTokens: 10, numTimed: 9, milliseconds: 1000 });
  const second = new Meter(60_000, { timeToFirstToken: 100, numTokens: 10, isResumed: false, earlier: first.measured });
  assert.deepEqual(describe(second), ["first token 100 ms", "9.0 tokens/s", "10 tokens"]);
  second.add(2, 60_400);
  second.add(12, 61_400);
  second.correct(14);
  assert.deepEqual(describe(second, "stop"), ["first token 100 ms", "11 tokens/s", "24 tokens", "complete"]);
  const unknown = { numTokens: 24, numTimed: 0, milliseconds: null };
  const third = new Meter(0, { timeToFirstToken: 100, numTokens: 24, isResumed: false, earlier: unknown });
  third.add(1, 10);
  third.add(99, 1000);
  assert.deepEqual(describe(third, "stop"), ["first token 100 ms", "124 tokens", "complete"]);
});
