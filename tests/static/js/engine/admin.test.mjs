import assert from "node:assert/strict";
import { test } from "node:test";

import { Admin } from "../../../../static/js/engine/admin.js";
import { words } from "../../../../static/js/words/words.js";

/** A server with this key; its answers wait for `open()`. */
function serverWith(key) {
  const asked = [];
  let open;
  const isOpen = new Promise((resolve) => (open = resolve));
  const fetch = async (path, { headers }) => {
    asked.push([path, headers.Authorization]);
    await isOpen;
    const status = key === null ? 404 : headers.Authorization === `Bearer ${key}` ? 200 : 401;
    return Response.json(status === 200 ? { state: "paused" } : { error: { message: "no" } }, { status });
  };
  return { asked, fetch, open };
}

test("a key is tried before it is taken, and what is asked for meanwhile waits for it", async () => {
  const { asked, fetch, open } = serverWith("right");
  const admin = new Admin({ value: "" }, fetch);
  const taking = admin.takeKey("right");
  const calling = admin.call("pause");
  open();
  assert.equal(await taking, "");
  assert.deepEqual(await calling, { state: "paused" });
  assert.deepEqual(asked, [["/admin/usage", "Bearer right"], ["/admin/pause", "Bearer right"]]);
  assert.equal(await admin.takeKey(""), "");
  assert.deepEqual([admin.key.value, asked.length], ["", 2]);
});

test("a key that the server refuses is none, and the reason is told", async () => {
  const { fetch, open } = serverWith("right");
  open();
  const admin = new Admin({ value: "right" }, fetch);
  assert.equal(await admin.takeKey("wrong"), words.engine.keyRefused);
  assert.equal(admin.key.value, "");
  const none = serverWith(null);
  none.open();
  assert.equal(await new Admin({ value: "" }, none.fetch).takeKey("any"), words.engine.noAdminKey);
});

test("a key that could not be tried may be right, and stays", async () => {
  const lost = new Admin({ value: "right" }, () => Promise.reject(new TypeError("fetch failed")));
  assert.equal(await lost.takeKey("right"), words.engine.keyUntried(words.transport.unreachable));
  assert.equal(lost.key.value, "right");
  const draining = async () => Response.json({ error: { message: "draining" } }, { status: 503 });
  const busy = new Admin({ value: "right" }, draining);
  assert.equal(await busy.takeKey("right"), words.engine.keyUntried("draining"));
  assert.equal(busy.key.value, "right");
});

test("of two keys, the one that was entered last counts, whichever answer comes first", async () => {
  const answers = [];
  const admin = new Admin({ value: "" }, () => new Promise((resolve) => answers.push(resolve)));
  const [first, second] = [admin.takeKey("first"), admin.takeKey("second")];
  answers[1](Response.json({}));
  await second;
  answers[0](Response.json({}));
  await first;
  assert.equal(admin.key.value, "second");
});
