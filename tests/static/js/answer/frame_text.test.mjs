import assert from "node:assert/strict";
import { test } from "node:test";

import { FrameText } from "../../../../static/js/answer/frame_text.js";

test("one write per frame, and what is left at a flush", () => {
  const frames = [];
  const written = [];
  const text = new FrameText((piece) => written.push(piece), { schedule: (run) => frames.push(run), cancel: () => frames.pop() });
  for (const piece of ["a", "", "b", "c"]) text.push(piece);
  assert.deepEqual([frames.length, written], [1, []]);
  frames.pop()();
  assert.deepEqual(written, ["abc"]);
  text.push("d");
  text.flush();
  text.flush();
  assert.deepEqual([frames.length, written], [0, ["abc", "d"]]);
});
