import assert from "node:assert/strict";
import { test } from "node:test";

import { ConnectionLost, ServerError } from "../../../../static/js/transport/errors.js";
import { StreamSocket } from "../../../../static/js/transport/stream_socket.js";
import { FakeWebSocket, fakeSockets } from "./fake_web_socket.mjs";

function setUp() {
  const sockets = fakeSockets();
  return { sockets, client: new StreamSocket({ url: "ws://test/v1/stream", WebSocketClass: sockets.Class }) };
}

test("a generation is sent once the socket is open, and its messages arrive in order", async () => {
  const { sockets, client } = setUp();
  const seen = [];
  const generation = client.generate({ prompt: "p", max_tokens: 3 }, {
    onStart: (message) => seen.push(["start", message.model]),
    onDelta: (message) => seen.push(["delta", message.text]),
  });
  const [socket] = sockets.made;
  assert.deepEqual(socket.sent, []);
  socket.open();
  assert.deepEqual(socket.sent, [{ type: "generate", id: generation.id, prompt: "p", max_tokens: 3 }]);
  socket.receive({ type: "start", id: generation.id, model: "m" });
  socket.receive({ type: "delta", id: generation.id, text: "a" });
  socket.receive({ type: "delta", id: generation.id, text: "b" });
  socket.receive({ type: "done", id: generation.id, finish_reason: "stop", usage: { completion_tokens: 2 } });
  assert.deepEqual(await generation.finished, { finishReason: "stop", usage: { completion_tokens: 2 } });
  assert.deepEqual(seen, [["start", "m"], ["delta", "a"], ["delta", "b"]]);
  assert.equal(client.numOpen, 0);
});

test("many generations share one socket and are told apart by id", async () => {
  const { sockets, client } = setUp();
  const texts = ["", "", ""];
  const generations = texts.map((_, i) => client.generate({ prompt: String(i) }, { onDelta: ({ text }) => (texts[i] += text) }));
  assert.equal(sockets.made.length, 1);
  const [socket] = sockets.made;
  socket.open();
  assert.equal(new Set(generations.map(({ id }) => id)).size, 3);
  for (const round of ["x", "y"]) {
    generations.forEach(({ id }, i) => socket.receive({ type: "delta", id, text: `${round}${i}` }));
  }
  socket.receive({ type: "error", id: generations[1].id, error: { message: "broke" } });
  for (const i of [2, 0]) socket.receive({ type: "done", id: generations[i].id, finish_reason: "length", usage: null });
  await assert.rejects(generations[1].finished, new ServerError({ message: "broke" }));
  assert.equal((await generations[0].finished).finishReason, "length");
  assert.equal((await generations[2].finished).finishReason, "length");
  assert.deepEqual(texts, ["x0y0", "x1y1", "x2y2"]);
});

test("after its terminal message a generation hears nothing more, whatever comes", async () => {
  const { sockets, client } = setUp();
  const seen = [];
  const { id, finished } = client.generate({ prompt: "p" }, { onDelta: ({ text }) => seen.push(text) });
  const [socket] = sockets.made;
  socket.open();
  socket.receive({ type: "done", id, finish_reason: "stop", usage: null });
  socket.receive({ type: "delta", id, text: "late" });
  socket.receive({ type: "error", id, error: { message: "late" } });
  socket.receive({ type: "delta", id: "unknown", text: "?" });
  socket.receive({ type: "error", id: null, error: { message: "not about a generation" } });
  assert.equal((await finished).finishReason, "stop");
  assert.deepEqual(seen, []);
});

test("cancel asks the server and the server's done ends it; a second cancel after that sends nothing", async () => {
  const { sockets, client } = setUp();
  const { id, finished, cancel } = client.generate({ prompt: "p" });
  const [socket] = sockets.made;
  socket.open();
  cancel();
  assert.deepEqual(socket.sent.at(-1), { type: "cancel", id });
  assert.equal(client.numOpen, 1);
  socket.receive({ type: "done", id, finish_reason: "abort", usage: { completion_tokens: 1 } });
  assert.deepEqual(await finished, { finishReason: "abort", usage: { completion_tokens: 1 } });
  const { length } = socket.sent;
  cancel();
  assert.equal(socket.sent.length, length);
});

test("a generation cancelled before the socket opens is never sent, and ends as aborted", async () => {
  const { sockets, client } = setUp();
  const first = client.generate({ prompt: "1" });
  const second = client.generate({ prompt: "2" });
  first.cancel();
  assert.deepEqual(await first.finished, { finishReason: "abort", usage: null });
  sockets.made[0].open();
  assert.deepEqual(sockets.made[0].sent.map(({ id }) => id), [second.id]);
});

test("the death of the socket rejects everything open once, and the next use opens a new one", async () => {
  const { sockets, client } = setUp();
  const open = [client.generate({ prompt: "1" }), client.generate({ prompt: "2" })];
  sockets.made[0].open();
  sockets.made[0].die({ code: 1006, reason: "" });
  for (const { finished } of open) await assert.rejects(finished, ConnectionLost);
  assert.equal(client.numOpen, 0);

  const again = client.generate({ prompt: "3" });
  assert.equal(sockets.made.length, 2);
  sockets.made[1].open();
  assert.deepEqual(sockets.made[1].sent.map(({ prompt }) => prompt), ["3"]);
  assert.equal(open.some(({ id }) => id === again.id), false);
  sockets.made[1].receive({ type: "done", id: again.id, finish_reason: "stop", usage: null });
  assert.equal((await again.finished).finishReason, "stop");
});

test("the reason that the server gives for closing is told; a socket that never opened could not be reached", async () => {
  const { sockets, client } = setUp();
  const { finished } = client.generate({ prompt: "p" });
  sockets.made[0].open();
  sockets.made[0].die({ code: 1001, reason: "the server is going away" });
  await assert.rejects(finished, /the server is going away/);
  const refused = client.generate({ prompt: "p" });
  sockets.made[1].die({ code: 1006, reason: "" });
  await assert.rejects(refused.finished, /cannot be reached/);
});

test("a frame that is not JSON ends the connection rather than the page", async () => {
  const { sockets, client } = setUp();
  const { finished } = client.generate({ prompt: "p" });
  sockets.made[0].open();
  sockets.made[0].onmessage({ data: "{" });
  await assert.rejects(finished, /not JSON/);
  assert.equal(sockets.made[0].readyState, FakeWebSocket.CLOSED);
});

test("close rejects what is open", async () => {
  const { sockets, client } = setUp();
  const { finished } = client.generate({ prompt: "p" });
  sockets.made[0].open();
  client.close();
  await assert.rejects(finished, ConnectionLost);
});
