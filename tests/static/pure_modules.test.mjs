import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation } from "../../static/js/conversation.js";
import { FenceSplitter } from "../../static/js/fences.js";
import { FrameText } from "../../static/js/frame_text.js";
import { Meter, describe } from "../../static/js/meter.js";
import { ServerState } from "../../static/js/server_state.js";
import { DEFAULTS, loadSettings, normalise, samplingOf, saveSettings } from "../../static/js/settings.js";

test("meter: the rate counts the tokens after the first chunk, over the time since it", () => {
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

test("meter: the figures in words", () => {
  const meter = new Meter(0);
  assert.deepEqual(describe(meter), ["0 tokens"]);
  meter.add(1, 42.4);
  assert.deepEqual(describe(meter), ["first token 42 ms", "1 token"]);
  meter.add(1, 1042.4);
  assert.deepEqual(describe(meter, "length"), ["first token 42 ms", "1.0 tokens/s", "2 tokens", "length reached"]);
  assert.equal(describe(meter, "something new").at(-1), "something new");
});

const FENCED = "Look:\n```js\nlet a = `b`;\n``\n```\nand ``inline``\n   ````\n```\nstill code\n`````\n``";
const PIECES = [
  { kind: "prose", text: "Look:\n" },
  { kind: "open", language: "js" },
  { kind: "code", text: "let a = `b`;\n``\n" },
  { kind: "close" },
  { kind: "prose", text: "and ``inline``\n" },
  { kind: "open", language: "" },
  { kind: "code", text: "```\nstill code\n" },
  { kind: "close" },
  { kind: "prose", text: "``" },
];

/** Pieces of one kind that follow one another, as one. */
function merge(pieces) {
  const merged = [];
  for (const piece of pieces) {
    if ("text" in piece && merged.at(-1)?.kind === piece.kind) merged.at(-1).text += piece.text;
    else merged.push({ ...piece });
  }
  return merged;
}

test("fences: the same pieces whatever the three chunks that the text is cut into", () => {
  for (let first = 0; first <= FENCED.length; first += 1) {
    for (let second = first; second <= FENCED.length; second += 1) {
      const splitter = new FenceSplitter();
      const pieces = [FENCED.slice(0, first), FENCED.slice(first, second), FENCED.slice(second)]
        .flatMap((chunk) => splitter.feed(chunk))
        .concat(splitter.end());
      assert.deepEqual(merge(pieces), PIECES, `cut at ${first} and ${second}`);
    }
  }
});

test("fences: prose is given at once; only what may become a fence is held back", () => {
  const splitter = new FenceSplitter();
  assert.deepEqual(splitter.feed("Hello"), [{ kind: "prose", text: "Hello" }]);
  assert.deepEqual(splitter.feed("\n``"), [{ kind: "prose", text: "\n" }]);
  assert.deepEqual(splitter.feed("x"), [{ kind: "prose", text: "``x" }]);
});

test("fences: a block that the model does not close is closed at the end", () => {
  const splitter = new FenceSplitter();
  const pieces = [...splitter.feed("```\ncode\n``"), ...splitter.end()];
  assert.deepEqual(merge(pieces), [{ kind: "open", language: "" }, { kind: "code", text: "code\n``" }, { kind: "close" }]);
});

test("frame text: one write per frame, and what is left at a flush", () => {
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

test("conversation: asks with the system prompt and all answered turns", () => {
  const conversation = new Conversation();
  assert.deepEqual(conversation.ask("", "one"), [{ role: "user", content: "one" }]);
  conversation.add("one", "1");
  conversation.add("unanswered", "");
  assert.deepEqual(conversation.ask("be brief", "two").map(({ role, content }) => [role, content]), [
    ["system", "be brief"],
    ["user", "one"],
    ["assistant", "1"],
    ["user", "two"],
  ]);
  conversation.clear();
  assert.equal(conversation.isEmpty, true);
});

function memoryStorage() {
  const kept = new Map();
  return { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
}

test("settings: kept between visits; anything odd becomes its default", () => {
  const storage = memoryStorage();
  const settings = { ...DEFAULTS, transport: "websocket", temperature: 0, seed: 7 };
  saveSettings(() => storage, settings);
  assert.deepEqual(loadSettings(() => storage), settings);
  const odd = { mode: "x", transport: 1, temperature: 9, topP: 0, maxTokens: -1, seed: 1.5, system: null };
  for (const raw of [odd, null, 5, "text", []]) assert.deepEqual(normalise(raw), { ...DEFAULTS });
});

test("settings: a browser without storage has the defaults and no error", () => {
  const forbidden = () => {
    throw new DOMException("denied", "SecurityError");
  };
  assert.deepEqual(loadSettings(forbidden), { ...DEFAULTS });
  saveSettings(forbidden, DEFAULTS);
});

test("settings: become request parameters, the seed only where there is one", () => {
  assert.deepEqual(samplingOf(DEFAULTS), { temperature: 0.8, top_p: 0.95, max_tokens: 256 });
  assert.equal(samplingOf({ ...DEFAULTS, seed: 0 }).seed, 0);
});

test("server state: loading, ready, unwell, lost and back, with the model of the moment", async () => {
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

test("server state: what refuses before the first answer is a server that is starting", async () => {
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
