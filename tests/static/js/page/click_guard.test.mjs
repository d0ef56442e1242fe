import assert from "node:assert/strict";
import { test } from "node:test";

import { ClickGuard } from "../../../../static/js/page/click_guard.js";

test("a click on what has moved under the pointer a moment ago is not meant for it", async () => {
  let now = 1000;
  const guard = new ClickGuard(() => now);
  const isStray = (timeStamp, detail = 1) => guard.isStray({ timeStamp, detail });
  assert.equal(isStray(1000), false);
  let finish;
  const moving = guard.during(() => new Promise((resolve) => (finish = resolve)));
  assert.equal(isStray(5000, 2), true, "what moves has not come yet");
  assert.equal(isStray(5000, 0), false, "a key means what it presses");
  now = 9000; // a slow machine
  finish();
  await moving;
  assert.deepEqual([isStray(8000), isStray(9399, 2), isStray(9400, 2)], [true, true, false]);
  await assert.rejects(guard.during(() => Promise.reject(new Error("refused"))), /refused/);
  assert.deepEqual([isStray(9300), isStray(9400)], [true, false]);
});
