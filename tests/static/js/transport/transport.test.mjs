import assert from "node:assert/strict";
import { test } from "node:test";

import { ConnectionLost, ServerError } from "../../../../static/js/transport/errors.js";
import { StreamSocket } from "../../../../static/js/transport/stream_socket.js";
import { SocketTransport, SseTransport } from "../../../../static/js/transport/transport.js";
import { fakeSockets } from "./fake_web_socket.mjs";

const TASK = { prompt: "p", max_tokens: 2, temperature: 0, top_p: 1 };

function sse(payloads, seen = {}) {
  const body = payloads.map((payload) => `data: ${JSON.stringify(payload)}\n\n`).join("") + "data: [DONE]\n\n";
  return new SseTransport({
    fetch: async (url, init) => {
      Object.assign(seen, { url, body: JSON.parse(init.body) });
      init.signal?.throwIfAborted();
      return new Response(body);
    },
  });
}

async function collect(generator) {
  const chunks = [];
  for await (const { text, tokenIds, finish, usage } of generator) chunks.push({ text, tokenIds, finish, usage });
  return chunks;
}

test("SSE: completions and chat give the same chunks, from their own routes", async () => {
  const usage = { completion_tokens: 2 };
  const expected = [
    { text: "a", tokenIds: [1], finish: null, usage: null },
    { text: "b", tokenIds: [2], finish: "stop", usage: null },
    { text: "", tokenIds: null, finish: null, usage },
  ];
  const seen = {};
  const completion = sse([
    { choices: [{ index: 0, text: "a", token_ids: [1], finish_reason: null }] },
    { choices: [{ index: 0, text: "b", token_ids: [2], finish_reason: "stop" }] },
    { choices: [], usage },
  ], seen);
  assert.deepEqual(await collect(completion.stream(TASK)), expected);
  assert.equal(seen.url, "/v1/completions");
  assert.deepEqual(seen.body, {
    ...TASK, stream: true, stream_options: { include_usage: true }, return_token_ids: true, resumable: true,
    return_progress: true,
  });

  const messages = [{ role: "user", content: "hi" }];
  const chat = sse([
    { choices: [{ index: 0, delta: { role: "assistant", content: "a" }, token_ids: [1], finish_reason: null }] },
    { choices: [{ index: 0, delta: { content: "b" }, token_ids: [2], finish_reason: "stop" }] },
    { choices: [], usage },
  ], seen);
  assert.deepEqual(await collect(chat.stream({ messages, max_tokens: 2 })), expected);
  assert.equal(seen.url, "/v1/chat/completions");
  assert.deepEqual(seen.body.messages, messages);
});

test("SSE: an abort is an ending, not an error", async () => {
  const signal = AbortSignal.abort();
  assert.deepEqual((await collect(sse([]).stream(TASK, { signal }))).map(({ finish }) => finish), ["abort"]);
});

/** Lets what was received reach the reader. */
const settle = () => new Promise((resolve) => setImmediate(resolve));

/** A server whose head comes when `open()` is called, and which answers a cancellation when `tell()` is. */
function slowServer() {
  const server = { calls: [], open: null, tell: null };
  server.transport = new SseTransport({
    fetch: (url, init) => new Promise((resolve, reject) => {
      server.calls.push({ url, method: init.method, id: init.headers?.["X-Request-Id"], signal: init.signal });
      init.signal?.addEventListener("abort", () => reject(init.signal.reason));
      if (url.endsWith("/cancel")) server.tell = () => resolve(new Response("{}"));
      else if (init.method === "POST") server.open = () => resolve(new Response("", { headers: { "X-Eagre-Stream": "s" } }));
      else resolve(new Response("{}"));
    }),
  });
  return server;
}

test("SSE: an abort before the head is told by the request's id, and the connection lasts until it is told", async () => {
  for (const isLate of [false, true]) { // whether the head comes meanwhile
    const server = slowServer();
    const stop = new AbortController();
    const reading = collect(server.transport.stream(TASK, { signal: stop.signal }));
    await settle();
    stop.abort();
    assert.deepEqual((await reading).map(({ finish }) => finish), ["abort"]);
    const [asked, cancelled] = server.calls;
    assert.match(asked.id, /^[0-9a-f-]{7,35}$/);
    assert.deepEqual([cancelled.method, cancelled.url], ["POST", `/v1/requests/${asked.id}/cancel`]);
    assert.equal(asked.signal.aborted, false);
    if (isLate) server.open();
    server.tell();
    await settle();
    assert.equal(asked.signal.aborted, true);
    assert.equal(server.calls.length, 2);
  }
});

test("SSE: an abort behind the head is told by the stream's id", async () => {
  const server = slowServer();
  const stop = new AbortController();
  const answer = server.transport.stream(TASK, { signal: stop.signal });
  const first = answer.next();
  await settle();
  server.open();
  assert.equal((await first).value.stream.id, "s");
  stop.abort();
  assert.equal((await answer.next()).value.finish, "abort");
  assert.deepEqual(server.calls.map(({ method, url }) => `${method} ${url}`), ["POST /v1/completions", "DELETE /v1/streams/s"]);
  assert.equal(server.calls[0].signal.aborted, true);
});

function socketTransport() {
  const sockets = fakeSockets();
  const client = new StreamSocket({ url: "ws://test", WebSocketClass: sockets.Class });
  return { sockets, client, transport: new SocketTransport(client) };
}

test("WebSocket: deltas and the end arrive as chunks, also when they come faster than they are read", async () => {
  const { sockets, transport } = socketTransport();
  const reading = collect(transport.stream(TASK));
  const [socket] = sockets.made;
  socket.open();
  const { id } = socket.sent[0];
  socket.receive({ type: "delta", id, index: 0, text: "a", token_ids: [1] });
  await settle();
  socket.receive({ type: "delta", id, index: 0, text: "b", token_ids: [2, 3] });
  socket.receive({ type: "delta", id, index: 0, text: "c" });
  socket.receive({ type: "done", id, finish_reason: "stop", usage: { completion_tokens: 4 } });
  assert.deepEqual(await reading, [
    { text: "a", tokenIds: [1], finish: null, usage: null },
    { text: "b", tokenIds: [2, 3], finish: null, usage: null },
    { text: "c", tokenIds: null, finish: null, usage: null },
    { text: "", tokenIds: null, finish: "stop", usage: { completion_tokens: 4 } },
  ]);
});

test("WebSocket: the signal cancels, and the text before it is kept", async () => {
  const { sockets, transport } = socketTransport();
  const abort = new AbortController();
  const reading = collect(transport.stream(TASK, { signal: abort.signal }));
  const [socket] = sockets.made;
  socket.open();
  const { id } = socket.sent[0];
  socket.receive({ type: "delta", id, index: 0, text: "a", token_ids: [1] });
  abort.abort();
  assert.deepEqual(socket.sent[1], { type: "cancel", id });
  socket.receive({ type: "done", id, finish_reason: "abort", usage: null });
  assert.deepEqual((await reading).map(({ text, finish }) => [text, finish]), [["a", null], ["", "abort"]]);
});

test("WebSocket: a signal that is aborted already asks the server nothing", async () => {
  const { sockets, transport } = socketTransport();
  const chunks = await collect(transport.stream(TASK, { signal: AbortSignal.abort() }));
  assert.deepEqual(chunks.map(({ finish }) => finish), ["abort"]);
  assert.equal(sockets.made.length, 0);
});

test("WebSocket: errors and lost sockets are thrown after the text before them", async () => {
  for (const [fail, expected] of [
    [(socket, id) => socket.receive({ type: "error", id, error: { message: "broke" } }), ServerError],
    [(socket) => socket.die({ code: 1006, reason: "" }), ConnectionLost],
  ]) {
    const { sockets, transport } = socketTransport();
    const seen = [];
    const reading = (async () => {
      for await (const { text } of transport.stream(TASK)) seen.push(text);
    })();
    const [socket] = sockets.made;
    socket.open();
    const { id } = socket.sent[0];
    socket.receive({ type: "delta", id, index: 0, text: "a", token_ids: [1] });
    fail(socket, id);
    await assert.rejects(reading, expected);
    assert.deepEqual(seen, ["a"]);
  }
});

test("WebSocket: a reader that leaves early cancels its generation", async () => {
  const { sockets, transport } = socketTransport();
  const reading = (async () => {
    for await (const { text } of transport.stream(TASK)) if (text === "a") break;
  })();
  const [socket] = sockets.made;
  socket.open();
  const { id } = socket.sent[0];
  socket.receive({ type: "delta", id, index: 0, text: "a", token_ids: [1] });
  await reading;
  assert.deepEqual(socket.sent[1], { type: "cancel", id });
});
