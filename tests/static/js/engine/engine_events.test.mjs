import assert from "node:assert/strict";
import { test } from "node:test";

import { EngineEvents } from "../../../../static/js/engine/engine_events.js";

const body = (...texts) => new ReadableStream({
  start(controller) {
    for (const text of texts) controller.enqueue(new TextEncoder().encode(text));
    controller.close();
  },
});

test("reads events, comes back after an end or a refusal, and stops when it is closed", async () => {
  const got = [];
  const answers = [
    () => new Response(body(': ping\n\ndata: {"at"', ": 1}\n\n")),
    () => new Response(JSON.stringify({ error: { message: "no key" } }), { status: 401 }),
    () => new Response(body('data: {"at": 2}\n\n')),
  ];
  const troubles = [];
  const events = new EngineEvents({
    fetch: async () => answers.shift()(),
    onEvent: (event) => got.push(event.at),
    onTrouble: (error) => troubles.push(error.message),
    wait: async () => {
      if (answers.length === 0) events.close();
    },
  });
  await events.open();
  assert.deepEqual(got, [1, 2]);
  assert.deepEqual(troubles, ["no key"]);
  assert.equal(events.isOpen, false);
});
