import assert from "node:assert/strict";
import { test } from "node:test";

import { ServerState } from "../../../../static/js/transport/server_state.js";

test("loading, ready, unwell, lost and back, with the model of the moment", async () => {
  const answers = { status: "loading", model: "one" };
  const fetch = async (url) => {
    if (answers.status === null) throw new TypeError("Failed to fetch");
    if (url === "/v1/models") return Response.json({ data: [{ id: answers.model }] });
    const { status } = answers;
    return Response.json({ status, detail: `it is ${status}` }, { status: status === "ready" ? 200 : 503 });
  };
  const timers = [];
  const changes = [];
  const state = new ServerState(({ name, detail, model }) => changes.push([name, detail, model?.id]), {
    fetch,
    setTimer: (_, wait) => timers.push(wait),
    clearTimer: () => undefined,
  });
  await state.check();
  answers.status = "ready";
  await Promise.all([state.check(), state.check()]);
  answers.status = "draining";
  await state.check();
  answers.status = null;
  await state.check();
  Object.assign(answers, { status: "ready", model: "two" });
  await state.check();
  assert.deepEqual(changes, [
    ["loading", "it is loading", undefined],
    ["ready", "", "one"],
    ["unwell", "it is draining", "one"],
    ["lost", "", "one"],
    ["ready", "", "two"],
  ]);
  assert.equal(timers.length, 5, "two checks at once are one question");
  assert.ok(timers[0] < timers[1], "asks more often while it waits");
});

test("of several models the chosen one, or the first where the server does not have it", async () => {
  const fetch = async (url) => Response.json(url === "/v1/models" ? { data: [{ id: "one" }, { id: "two" }] } : { status: "ready" });
  const seen = [];
  const state = new ServerState(({ model }) => seen.push(model?.id), {
    fetch, wanted: ["two"], setTimer: () => 0, clearTimer: () => undefined,
  });
  await state.check();
  state.choose(["gone"]);
  state.choose(["gone", "two"]);
  assert.deepEqual(seen, ["two", "one", "two"]);
  assert.deepEqual(state.models, ["one", "two"]);
  state.forget();
  assert.equal(state.model, null);
});

test("a refusal of what the browser has asked ahead, without the key, is no refusal of the key", async () => {
  let numAsked = 0;
  const fetch = async (url) => {
    if (url !== "/v1/models") return Response.json({ status: "ready" });
    numAsked += 1;
    return numAsked === 1 ? Response.json({}, { status: 401 }) : Response.json({ data: [{ id: "one" }] });
  };
  const names = [];
  const options = { fetch, hasKey: () => true, setTimer: () => 0, clearTimer: () => undefined };
  await new ServerState(({ name }) => names.push(name), options).check();
  assert.deepEqual([names, numAsked], [["ready"], 2]);
});

test("what refuses before the first answer is a server that is starting", async () => {
  const refuse = async () => {
    throw new TypeError("Failed to fetch");
  };
  const state = new ServerState(() => undefined, { fetch: refuse, setTimer: () => 0, clearTimer: () => undefined });
  await state.check();
  assert.equal(state.name, "loading");
  const proxy = new ServerState(() => undefined, {
    fetch: async () => new Response("<html>", { status: 502 }),
    setTimer: () => 0,
    clearTimer: () => undefined,
  });
  await proxy.check();
  assert.equal(proxy.name, "unwell");
});

test("a page that opens asks for the state and the models at once", async () => {
  const asked = [];
  const answers = [];
  const fetch = (url) => new Promise((resolve) => {
    asked.push(url);
    answers.push(() => resolve(Response.json(url === "/v1/models" ? { data: [{ id: "one" }] } : { status: "ready" })));
  });
  const state = new ServerState(() => undefined, { fetch, setTimer: () => 0, clearTimer: () => undefined });
  const checked = state.check();
  assert.deepEqual(asked.toSorted(), ["/readiness", "/v1/models"]);
  for (const answer of answers) answer();
  await checked;
  assert.equal(state.model.id, "one");
});
