import assert from "node:assert/strict";
import { test } from "node:test";

import { describeWait } from "../../../../static/js/answer/waiting.js";

const PROGRESS = { stage: "queued", queue_position: 3, estimated_seconds: 4.1, total: 6120, cache: 0, processed: 0 };

test("how an answer waits is said in words", () => {
  assert.equal(describeWait(null, 0), "Waiting for the first token");
  assert.equal(describeWait(PROGRESS, 0), "In the queue: 3 before this one, about 5 s to go");
  assert.equal(describeWait({ ...PROGRESS, queue_position: 0, estimated_seconds: null }, 2), "In the queue: next, 2 s");
  const paused = { ...PROGRESS, queue_position: 0, estimated_seconds: null, detail: "the engine is paused" };
  assert.equal(describeWait(paused, 2), "Waiting: the engine is paused, 2 s");
  const reading = { ...PROGRESS, stage: "prompt", processed: 4096 };
  assert.equal(describeWait(reading, 1), "The prompt is being read: 4096 of 6120 tokens, 1 s");
  assert.equal(describeWait({ ...reading, cache: 2048 }, 0), "The prompt is being read: 4096 of 6120 tokens (2048 from the cache)");
  assert.equal(describeWait({ ...PROGRESS, stage: "loading", detail: "load weights" }, 0), "The model is being loaded (load weights)");
});
