import assert from "node:assert/strict";
import { test } from "node:test";

import { RequestBars, partsOf } from "../../../../static/js/engine/request_bars.js";

const request = (fields) => ({ key: "r", id: null, slot: 0, state: "prompt", prompt: 100, computed: 0, cached: 0, output: 0, queue_ms: null, ...fields });
const event = (now_ms, slots, queue = []) => ({ now_ms, slots, queue });

test("a bar has its queue, the pieces of its prompt, and its tokens", () => {
  const bars = new RequestBars();
  bars.add(event(1000, [], [request({ slot: -1, state: "waiting", age_ms: 100 })]));
  bars.add(event(1200, [request({ computed: 60, cached: 20, age_ms: 300, queue_ms: 150 })]));
  bars.add(event(1400, [request({ computed: 100, cached: 20, age_ms: 500, queue_ms: 150, id: "mine" })]));
  bars.add(event(1600, [request({ computed: 100, cached: 20, output: 5, state: "answer", age_ms: 700, queue_ms: 150 })]));
  bars.add(event(1800, []));
  const [bar] = bars.bars;
  assert.deepEqual([bar.id, bar.submitted, bar.admitted, bar.firstToken, bar.ended], ["mine", 900, 1050, 1600, 1800]);
  assert.deepEqual(bar.pieces.map(({ tokens }) => tokens), [40, 40], "cached tokens are nobody's work");
  assert.deepEqual(
    partsOf(bar, 800, 1800).map(({ kind, from, to }) => [kind, Math.round(from * 1000), Math.round(to * 1000)]),
    [["queue", 100, 250], ["prompt", 250, 400], ["prompt", 400, 600], ["tokens", 800, 1000]],
  );
});

test("of a request that already answers when it is first seen, what came before is not drawn as its prompt", () => {
  const bars = new RequestBars();
  const answering = { prompt: 1, computed: 1, state: "answer", queue_ms: 0 };
  bars.add(event(4000, [request({ ...answering, output: 90, age_ms: 3000 })]));
  bars.add(event(5000, [request({ ...answering, output: 120, age_ms: 4000 })]));
  const parts = partsOf(bars.bars[0], 1000, 5000).map(({ kind, from, to }) => [kind, from, to]);
  assert.deepEqual(parts, [["unseen", 0, 0.75], ["tokens", 0.75, 1]]);
});

test("few bars are kept, those of running requests always", () => {
  const bars = new RequestBars();
  const running = [...Array(60).keys()].map((at) => request({ key: `k${at}`, age_ms: 10 }));
  bars.add(event(100, running));
  assert.equal(bars.bars.length, 60);
  bars.add(event(200, []));
  bars.add(event(300, [request({ key: "new", age_ms: 10 })]));
  assert.equal(bars.bars.length, 40);
  assert.equal(bars.bars[0].key, "new");
});

test("another engine's clock begins anew", () => {
  const bars = new RequestBars();
  bars.add(event(5000, [request({ age_ms: 1 })]));
  bars.add(event(100, []));
  assert.deepEqual(bars.bars, []);
});
