import assert from "node:assert/strict";
import { test } from "node:test";

import { MemoryDatabase } from "../../../../static/js/store/database.js";
import { fromFile } from "../../../../static/js/store/files.js";
import { Library } from "../../../../static/js/store/library.js";
import { makeAnswer, readNode } from "../../../../static/js/store/tree.js";

/** A question, two answers, of which the first is shown, and a file with the question. */
async function setUp() {
  const library = new Library(new MemoryDatabase());
  const conversation = library.create("Be brief.");
  conversation.title = "Tides";
  const attachments = [{ name: "notes.txt", text: "high at six" }];
  conversation.tree.add(readNode({ id: "q", role: "user", content: "When?", created: 1000, attachments }));
  for (const [id, content] of [["a", "At six."], ["b", "At noon."]]) {
    const answer = makeAnswer({ id, parent: "q", model: "m", parameters: {}, transport: "sse", created: 2000 });
    conversation.tree.add(Object.assign(answer, { content, finish: "stop" }));
  }
  conversation.tree.show("a");
  await library.save(conversation, conversation.tree.nodes());
  return { library, conversation };
}

for (const format of ["llama", "openwebui"]) {
  test(`what is exported for ${format} comes back with its branches, models and instructions`, async () => {
    const { library, conversation } = await setUp();
    const [read] = fromFile(await library.export([conversation.id], format));
    assert.deepEqual([read.title, read.system, read.kind], ["Tides", "Be brief.", "chat"]);
    const path = read.tree.path();
    assert.deepEqual(path.map(({ role }) => role), ["user", "assistant"]);
    assert.match(path[0].content, /high at six[^]*When\?/);
    assert.deepEqual([path[1].content, path[1].model], ["At six.", "m"]);
    assert.deepEqual(read.tree.siblings("a").map(({ content }) => content), ["At six.", "At noon."]);
  });
}

const PICTURE = { name: "tide.png", url: "data:image/png;base64,iVBORw0=" };

for (const format of ["eagre", "llama", "openwebui"]) {
  test(`pictures are exported for ${format} and come back`, async () => {
    const { library, conversation } = await setUp();
    conversation.tree.get("q").attachments.push(PICTURE);
    await library.save(conversation, conversation.tree.nodes());
    const [read] = fromFile(await library.export([conversation.id], format));
    assert.deepEqual(read.tree.path()[0].attachments.filter(({ url }) => url !== undefined), [PICTURE]);
  });
}

test("Markdown names pictures", async () => {
  const { library, conversation } = await setUp();
  conversation.tree.get("q").attachments.push(PICTURE);
  await library.save(conversation, conversation.tree.nodes());
  assert.match(await library.export([conversation.id], "markdown"), /\*tide\.png\*/);
});

test("a file's picture is no address that would be fetched", () => {
  for (const url of ["https://evil.example/a.png", "data:image/svg+xml;base64,PHN2Zz4=", "data:image/png;base64,a b", "data:image/png,x", 3, `data:image/png;base64,${"A".repeat(4e6)}`]) {
    const messages = [{ id: "u", parent: null, role: "user", content: "x", attachments: [{ name: "a", url }] }];
    const [read] = fromFile(JSON.stringify({ format: "eagre.conversations", conversations: [{ messages }] }));
    assert.deepEqual(read.tree.path()[0].attachments, []);
  }
});

test("a file of llama.cpp's page", () => {
  const messages = [
    { id: "r", convId: "c", type: "root", timestamp: 1, role: "system", content: "", parent: null, children: ["s"], thinking: "" },
    { id: "s", convId: "c", type: "text", timestamp: 1, role: "system", content: "Be kind.", parent: "r", children: ["u"], thinking: "" },
    { id: "u", convId: "c", type: "text", timestamp: 2, role: "user", content: "Hello", parent: "s", children: ["x"], thinking: "",
      extra: [{ type: "TEXT", name: "a.txt", content: "text" }, { type: "IMAGE", name: "b.png", base64Url: "data:" }] },
    { id: "x", convId: "c", type: "text", timestamp: 3, role: "assistant", content: "Hi", parent: "u", children: [], thinking: "a greeting", model: "m" },
  ];
  const [read] = fromFile(JSON.stringify({ conv: { id: "c", name: "Greeting", lastModified: 3, currNode: "x" }, messages }));
  assert.deepEqual([read.title, read.system, read.updated], ["Greeting", "Be kind.", 3]);
  const [question, answer] = read.tree.path();
  assert.deepEqual([question.parent, question.attachments], [null, [{ name: "a.txt", text: "text" }]]);
  assert.deepEqual([answer.content, answer.reasoning, answer.model, answer.finish], ["Hi", "a greeting", "m", "stop"]);
});

test("a file of Open WebUI, with and without a history", () => {
  const user = { id: "u", parentId: null, childrenIds: ["x"], role: "user", content: "Hello", timestamp: 2 };
  const answer = { id: "x", parentId: "u", childrenIds: [], role: "assistant", content: "Hi", timestamp: 3, model: "m" };
  const chat = { title: "Greeting", params: { system: "Be kind." }, history: { messages: { u: user, x: answer }, currentId: "x" } };
  const { history: _, ...flat } = { ...chat, messages: [{ ...user, parentId: undefined }, { ...answer, parentId: undefined }] };
  const read = fromFile(JSON.stringify([{ title: "Greeting", created_at: 2, updated_at: 3, chat }, { chat: flat }]));
  for (const { title, system, tree } of read) {
    assert.deepEqual([title, system], ["Greeting", "Be kind."]);
    assert.deepEqual(tree.path().map(({ content, created }) => [content, created]), [["Hello", 2000], ["Hi", 3000]]);
  }
});

test("a file of ChatGPT's export, without what nobody sees", () => {
  const node = (parent, role, parts, more = {}) => ({
    parent, message: { author: { role }, content: { content_type: "text", parts }, create_time: 2, metadata: {}, recipient: "all", ...more },
  });
  const mapping = {
    r: { parent: null, message: null },
    s: node("r", "system", [""], { metadata: { is_visually_hidden_from_conversation: true } }),
    u: node("s", "user", ["Hello", { content_type: "image_asset_pointer" }]),
    t: node("u", "assistant", ["search()"], { recipient: "browser" }),
    o: node("t", "tool", ["a page"]),
    x: node("o", "assistant", ["Hi"], { create_time: 3, metadata: { model_slug: "gpt-5" } }),
    y: node("o", "assistant", ["Good day"], { create_time: 4, metadata: { model_slug: "gpt-5" } }),
  };
  const [read] = fromFile(JSON.stringify([{ title: "Greeting", create_time: 1, update_time: 5, current_node: "x", mapping }]));
  assert.deepEqual([read.title, read.created, read.updated], ["Greeting", 1000, 5000]);
  const path = read.tree.path();
  assert.deepEqual(path.map(({ role, content, created }) => [role, content, created]), [["user", "Hello", 2000], ["assistant", "Hi", 3000]]);
  assert.equal(path[1].model, "gpt-5");
  assert.deepEqual(read.tree.siblings("x").map(({ content }) => content), ["Hi", "Good day"]);
});

test("a file of ChatGPT whose nodes are their own parents is read to an end", () => {
  const message = { author: { role: "user" }, content: { parts: ["x"] }, create_time: 1 };
  const mapping = { a: { parent: "b", message: null }, b: { parent: "a", message: null }, u: { parent: "a", message }, n: null };
  const [read] = fromFile(JSON.stringify({ title: 5, mapping, current_node: "gone" }));
  assert.deepEqual(read.tree.path().map(({ content }) => content), ["x"]);
});

test("Markdown has the branch that is shown, with its files, instructions and authors", async () => {
  const { library, conversation } = await setUp();
  const text = await library.export([conversation.id], "markdown");
  assert.equal(text, "# Tides\n\n> Be brief.\n\n## You\n\nnotes.txt\n\nhigh at six\n\nWhen?\n\n## m\n\nAt six.");
});

test("a file of nobody is refused with a reason", () => {
  for (const text of ["{}", "[]", "[1]", "null", '"x"', '[{"conv": {}}]', '{"mapping": []}']) assert.throws(() => fromFile(text), /no conversations/);
  assert.throws(() => fromFile('[{"conv": {}, "messages": [{"id": "u", "role": "wizard", "content": ""}]}]'), /Conversation 1/);
});
