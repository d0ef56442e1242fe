import assert from "node:assert/strict";
import { test } from "node:test";

import { ConnectionLost, ServerError } from "../../../../static/js/transport/errors.js";
import { SseParser, openEvents, readEvents } from "../../../../static/js/transport/sse.js";

/** The payloads of what a POST is answered. */
async function* postEvents(url, body, { signal, fetch }) {
  const response = await openEvents(url, { body, signal, fetch });
  for await (const { payload } of readEvents(response, signal)) yield payload;
}

const STREAM = [
  "\ufeff: ping\n\n",
  'data: {"text":"wörld 🌊"}\n\n',
  "event: note\r\ndata: one\r\ndata:two\r\ndata\r\nid: 7\r\n\r\n",
  "data: cr\rretry: 1500\r\r",
  "id: with\0null\nunknown: field\ndata:  two spaces\n\n",
  "event: no data, no event\n\n",
  "data: [DONE]\n\n",
  "data: never ended",
].join("");

const EVENTS = [
  { type: "message", data: '{"text":"wörld 🌊"}', lastEventId: "" },
  { type: "note", data: "one\ntwo\n", lastEventId: "7" },
  { type: "message", data: "cr", lastEventId: "7" },
  { type: "message", data: " two spaces", lastEventId: "7" },
  { type: "message", data: "[DONE]", lastEventId: "7" },
];

test("a whole stream gives its events", () => {
  const parser = new SseParser();
  assert.deepEqual(parser.feed(STREAM), EVENTS);
  assert.equal(parser.retry, 1500);
});

test("bytes give the same events whatever the two chunks they are cut into", () => {
  const bytes = new TextEncoder().encode(STREAM);
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const parser = new SseParser();
    const events = [...parser.feed(bytes.subarray(0, cut)), ...parser.feed(bytes.subarray(cut))];
    assert.deepEqual(events, EVENTS, `cut at ${cut}`);
  }
});

test("strings and bytes one by one give the same events", () => {
  const fromText = new SseParser();
  assert.deepEqual([...STREAM].flatMap((character) => fromText.feed(character)), EVENTS);
  const fromBytes = new SseParser();
  const bytes = new TextEncoder().encode(STREAM);
  assert.deepEqual([...bytes].flatMap((byte) => fromBytes.feed(Uint8Array.of(byte))), EVENTS);
});

test("an event is given as soon as its empty line ends, a carriage return included", () => {
  const parser = new SseParser();
  assert.equal(parser.feed("data: a\r\n\r").length, 1);
  assert.deepEqual(parser.feed("\n\n"), []);
  assert.equal(parser.feed("data: b\n\n").length, 1);
});

/** A fetch that answers with these chunks, and notes what it was asked and whether it was cancelled. */
function fakeFetch(chunks, { status = 200, end = true } = {}) {
  const seen = { cancelled: false };
  const fetch = async (url, init) => {
    Object.assign(seen, { url, body: JSON.parse(init.body) });
    const encoder = new TextEncoder();
    const stream = new ReadableStream({
      start(controller) {
        for (const chunk of chunks) controller.enqueue(encoder.encode(chunk));
        if (end) controller.close();
        init.signal?.addEventListener("abort", () => controller.error(init.signal.reason));
      },
      cancel() {
        seen.cancelled = true;
      },
    });
    return new Response(stream, { status });
  };
  return { fetch, seen };
}

async function collect(generator) {
  const payloads = [];
  for await (const payload of generator) payloads.push(payload);
  return payloads;
}

test("postEvents posts JSON and yields payloads until [DONE]", async () => {
  const { fetch, seen } = fakeFetch(['data: {"a":1}\n', '\ndata: {"a":2}\n\ndata: [DONE]\n\n'], { end: false });
  assert.deepEqual(await collect(postEvents("/x", { prompt: "p" }, { fetch })), [{ a: 1 }, { a: 2 }]);
  assert.equal(seen.url, "/x");
  assert.deepEqual(seen.body, { prompt: "p" });
});

test("a refusal is the server's own sentence; a page of something else is its status", async () => {
  const body = JSON.stringify({ error: { message: "top_p is 2", param: "top_p", code: "invalid_value" } });
  const refused = postEvents("/x", {}, { fetch: fakeFetch([body], { status: 400 }).fetch });
  await assert.rejects(collect(refused), (error) => {
    assert.ok(error instanceof ServerError);
    assert.deepEqual([error.message, error.param, error.code, error.status], ["top_p is 2", "top_p", "invalid_value", 400]);
    return true;
  });
  const proxied = postEvents("/x", {}, { fetch: fakeFetch(["<html>"], { status: 502 }).fetch });
  await assert.rejects(collect(proxied), /status 502/);
});

test("an error event after the headers is thrown, after the payloads before it", async () => {
  const { fetch } = fakeFetch(['data: {"a":1}\n\ndata: {"error":{"message":"broke"}}\n\n']);
  const seen = [];
  await assert.rejects(async () => {
    for await (const payload of postEvents("/x", {}, { fetch })) seen.push(payload);
  }, new ServerError({ message: "broke" }));
  assert.deepEqual(seen, [{ a: 1 }]);
});

test("a stream that ends without [DONE], or never begins, is a lost connection", async () => {
  await assert.rejects(collect(postEvents("/x", {}, { fetch: fakeFetch(['data: {"a":1}\n\n']).fetch })), ConnectionLost);
  const refuse = async () => {
    throw new TypeError("Failed to fetch");
  };
  await assert.rejects(collect(postEvents("/x", {}, { fetch: refuse })), ConnectionLost);
});

test("leaving the loop early closes the connection", async () => {
  const { fetch, seen } = fakeFetch(['data: {"a":1}\n\n'], { end: false });
  for await (const payload of postEvents("/x", {}, { fetch })) {
    assert.deepEqual(payload, { a: 1 });
    break;
  }
  assert.equal(seen.cancelled, true);
});

test("aborting the signal throws the abort, not a lost connection", async () => {
  const { fetch } = fakeFetch(['data: {"a":1}\n\n'], { end: false });
  const abort = new AbortController();
  await assert.rejects(async () => {
    for await (const _ of postEvents("/x", {}, { fetch, signal: abort.signal })) abort.abort();
  }, { name: "AbortError" });
});
