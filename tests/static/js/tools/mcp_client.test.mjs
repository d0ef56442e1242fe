import assert from "node:assert/strict";
import test from "node:test";

import { McpClient } from "../../../../static/js/tools/mcp_client.js";

/** A server of the protocol behind `fetch`; `tools` are listed two on a page. */
function stubServer({ tools = [], call = () => ({ content: [] }), events = false, capabilities = {}, offers = {} } = {}) {
  const seen = [];
  let session = "s-1";
  const answer = (message) => {
    const { id, method, params } = message;
    if (method === "initialize") return { jsonrpc: "2.0", id, result: { protocolVersion: "2025-03-26", capabilities } };
    if (method in offers) return { jsonrpc: "2.0", id, result: offers[method](params) };
    if (method === "tools/list") {
      const begin = Number(params.cursor ?? 0);
      const nextCursor = begin + 2 < tools.length ? String(begin + 2) : undefined;
      return { jsonrpc: "2.0", id, result: { tools: tools.slice(begin, begin + 2), nextCursor } };
    }
    try {
      return { jsonrpc: "2.0", id, result: call(params) };
    } catch (error) {
      return { jsonrpc: "2.0", id, error: { code: -32000, message: error.message } };
    }
  };
  const fetch = async (path, { method, headers = {}, body }) => {
    const message = body === undefined ? null : JSON.parse(body);
    seen.push({ path, method, headers, message });
    if (method === "DELETE") return new Response(null, { status: 200 });
    if (message.method === "notifications/initialized") return new Response(null, { status: 202 });
    if (message.method !== "initialize" && headers["Mcp-Session-Id"] !== session) {
      return new Response(JSON.stringify({ error: { message: "no such session" } }), { status: 404 });
    }
    const head = { "Mcp-Session-Id": session, "Content-Type": events ? "text/event-stream" : "application/json" };
    const text = JSON.stringify(answer(message));
    const progress = 'data: {"jsonrpc":"2.0","method":"notifications/progress","params":{}}\n\n: ping\n\n';
    return new Response(events ? `${progress}data: ${text}\n\n` : text, { headers: head });
  };
  return { seen, fetch, forget: () => (session = "s-2") };
}

for (const events of [false, true]) {
  test(`tools are listed over pages and called, ${events ? "as events" : "whole"}`, async () => {
    const tools = ["a", "b", "c"].map((name) => ({ name, inputSchema: { type: "object" } }));
    const server = stubServer({ tools, events, call: ({ name, arguments: args }) => ({ content: [{ type: "text", text: `${name} ${args.x}` }] }) });
    const client = new McpClient({ name: "my server", fetch: server.fetch });
    assert.deepEqual((await client.listTools()).map(({ name }) => name), ["a", "b", "c"]);
    assert.deepEqual(await client.callTool("b", { x: 5 }), { text: "b 5", isError: false });
    assert.equal(server.seen[0].path, "/v1/mcp/my%20server");
    assert.deepEqual(server.seen.map(({ message }) => message.method), ["initialize", "notifications/initialized", "tools/list", "tools/list", "tools/call"]);
    const { headers } = server.seen.at(-1);
    assert.equal(headers["Mcp-Session-Id"], "s-1");
    assert.equal(headers["Mcp-Protocol-Version"], "2025-03-26");
    await client.close();
    assert.equal(server.seen.at(-1).method, "DELETE");
  });
}

test("titles of a schema, which generators write, are not for the model; a property of this name is", async () => {
  const inputSchema = { type: "object", title: "findArguments", properties: { title: { type: "string", title: "Title" } }, required: ["title"] };
  const client = new McpClient({ name: "s", fetch: stubServer({ tools: [{ name: "find", inputSchema }] }).fetch });
  const [tool] = await client.listTools();
  assert.deepEqual(tool.inputSchema, { type: "object", properties: { title: { type: "string" } }, required: ["title"] });
});

test("prompts and resources are asked for where the server has them", async () => {
  const offers = {
    "prompts/list": ({ cursor }) => (cursor === undefined ? { prompts: [{ name: "greet" }, null], nextCursor: "2" } : { prompts: [{ name: "sum" }, {}] }),
    "prompts/get": ({ name, arguments: args }) => ({ messages: [{ role: "assistant", content: { type: "text", text: `${name} ${args.who}` } }, { role: "x", content: [] }] }),
  };
  const server = stubServer({ capabilities: { prompts: {} }, offers });
  const client = new McpClient({ name: "s", fetch: server.fetch });
  assert.deepEqual(await client.listOffers(), { prompts: [{ name: "greet" }, { name: "sum" }], resources: [], templates: [] });
  assert.ok(!server.seen.some(({ message }) => message.method.startsWith("resources")));
  assert.deepEqual(await client.getPrompt("greet", { who: "you" }), [
    { role: "assistant", content: [{ type: "text", text: "greet you" }] }, { role: "user", content: [] },
  ]);
  const readable = stubServer({
    capabilities: { resources: {} },
    offers: {
      "resources/list": () => ({ resources: [{ uri: "a:/b", name: "b" }, {}] }),
      "resources/templates/list": () => ({ resourceTemplates: [{ uriTemplate: "a:/{x}" }] }),
      "resources/read": ({ uri }) => ({ contents: [{ uri, text: "t" }] }),
    },
  });
  const other = new McpClient({ name: "s", fetch: readable.fetch });
  assert.deepEqual(await other.listOffers(), { prompts: [], resources: [{ uri: "a:/b", name: "b" }], templates: [{ uriTemplate: "a:/{x}" }] });
  assert.deepEqual(await other.readResource("a:/b"), [{ uri: "a:/b", text: "t" }]);
});

test("a session that the server has forgotten is begun anew", async () => {
  const server = stubServer({ call: () => ({ content: [{ type: "text", text: "ok" }] }) });
  const client = new McpClient({ name: "s", fetch: server.fetch });
  await client.callTool("a", {});
  server.forget();
  assert.equal((await client.callTool("a", {})).text, "ok");
});

test("results of other kinds, errors of tools and errors of the protocol", async () => {
  const results = {
    picture: { content: [{ type: "image", data: "…", mimeType: "image/png" }, { type: "text", text: "a cat" }] },
    structured: { content: [], structuredContent: { a: 1 } },
    failed: { content: [{ type: "text", text: "no such file" }], isError: true },
    strange: { content: "text" },
  };
  const call = ({ name }) => {
    if (name in results) return results[name];
    throw new Error("unknown tool");
  };
  const client = new McpClient({ name: "s", fetch: stubServer({ call }).fetch });
  assert.equal((await client.callTool("picture", {})).text, "[image/png that the model cannot read]\na cat");
  assert.equal((await client.callTool("structured", {})).text, '{"a":1}');
  assert.deepEqual(await client.callTool("failed", {}), { text: "no such file", isError: true });
  assert.equal((await client.callTool("strange", {})).text, "");
  await assert.rejects(client.callTool("none", {}), /s: unknown tool/);
});

test("a server that cannot be reached, or answers nothing", async () => {
  const refuse = async () => new Response(JSON.stringify({ error: { message: "the MCP server s cannot be reached" } }), { status: 502 });
  await assert.rejects(new McpClient({ name: "s", fetch: refuse }).listTools(), /cannot be reached/);
  const silent = async () => new Response("data: cut", { headers: { "Content-Type": "text/event-stream" } });
  await assert.rejects(new McpClient({ name: "s", fetch: silent }).listTools(), /has not answered/);
});
