import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiKey } from "../../../../static/js/transport/api_key.js";
import { ServerState } from "../../../../static/js/transport/server_state.js";
import { StreamSocket } from "../../../../static/js/transport/stream_socket.js";

function fakeStorage(entries = new Map()) {
  return {
    getItem: (name) => entries.get(name) ?? null,
    setItem: (name, value) => entries.set(name, value),
    removeItem: (name) => entries.delete(name),
    entries,
  };
}

test("a key is kept for the session and forgotten when it is emptied", () => {
  const storage = fakeStorage();
  new ApiKey(() => storage).value = " secret-key-1 ";
  const again = new ApiKey(() => storage);
  assert.equal(again.value, "secret-key-1");
  again.value = "";
  assert.equal(storage.entries.size, 0);
});

test("where storage is forbidden the key lasts as long as the page", () => {
  const key = new ApiKey(() => {
    throw new Error("blocked");
  });
  key.value = "secret-key-1";
  assert.equal(key.value, "secret-key-1");
});

test("requests carry the key beside their own headers, and sockets as a subprotocol", async () => {
  const seen = [];
  const key = new ApiKey(() => fakeStorage());
  const fetch = key.over(async (...call) => seen.push(call));
  await fetch("/a", { method: "POST", headers: { Accept: "x" } });
  key.value = "secret-key-1";
  await fetch("/b", { method: "POST", headers: { Accept: "x" } });
  assert.deepEqual(seen, [
    ["/a", { method: "POST", headers: { Accept: "x" } }],
    ["/b", { method: "POST", headers: { Accept: "x", Authorization: "Bearer secret-key-1" } }],
  ]);
  const made = [];
  class Socket {
    constructor(url, protocols) {
      made.push([url, protocols]);
    }
    close() {}
  }
  const client = new StreamSocket({ url: "ws://x", protocols: () => key.protocols, WebSocketClass: Socket });
  client.generate({ prompt: "a" }).finished.catch(() => undefined);
  client.close();
  assert.deepEqual(made, [["ws://x", ["eagre", "eagre-api-key.secret-key-1"]]]);
});

test("keys that a header or a socket cannot carry are not sent", async () => {
  const seen = [];
  const key = new ApiKey(() => fakeStorage());
  key.value = "schlüssel nö";
  await key.over(async (url, options) => seen.push(options))("/a");
  assert.deepEqual(seen, [{}]);
  assert.deepEqual(key.protocols, []);
  key.value = "with/slash=1";
  assert.deepEqual(key.protocols, []);
});

test("a server that wants a key is locked until it has one", async () => {
  const key = new ApiKey(() => fakeStorage());
  const fetch = async (url, { headers } = {}) => {
    if (url === "/readiness") return Response.json({ status: "ready", detail: "" });
    if (headers?.Authorization !== "Bearer secret-key-1") return Response.json({ error: {} }, { status: 401 });
    return Response.json({ data: [{ id: "one" }] });
  };
  const names = [];
  const state = new ServerState(({ name }) => names.push(name), {
    fetch: key.over(fetch),
    setTimer: () => 0,
    clearTimer: () => undefined,
  });
  await state.check();
  assert.equal(state.model, null);
  key.value = "secret-key-1";
  state.forget();
  await state.check();
  assert.deepEqual(names, ["locked", "connecting", "ready"]);
  assert.equal(state.model.id, "one");
});
