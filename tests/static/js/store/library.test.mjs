import assert from "node:assert/strict";
import { test } from "node:test";

import { MemoryDatabase } from "../../../../static/js/store/database.js";
import { BIN, Library, modelNameOf, titleOf } from "../../../../static/js/store/library.js";
import { makeAnswer, readNode } from "../../../../static/js/store/tree.js";

const event = (at) => ({ at, text: `${at} `, reasoning: "", ids: [at], logprobs: null });

/** Counts the events that are written. */
class CountingDatabase extends MemoryDatabase {
  written = [];

  put(conversation, nodes, pieces = []) {
    this.written.push(pieces.reduce((count, { events }) => count + events.length, 0));
    return super.put(conversation, nodes, pieces);
  }
}

async function setUp() {
  let time = 100;
  const library = new Library(new MemoryDatabase(), { now: () => (time += 1) });
  const made = [];
  for (const words of ["Why is the sky blue?", "A loop in Python"]) {
    const conversation = library.create("Be brief.");
    const node = readNode({ id: `n-${words.length}`, role: "user", content: words, created: 1 });
    conversation.tree.add(node);
    await library.save(conversation, [node]);
    made.push(conversation);
  }
  return { library, made };
}

test("conversations are found by all words of a query, the latest first, and renamed and forgotten", async () => {
  const { library, made: [sky, loop] } = await setUp();
  const titles = async (query) => (await library.find(query)).map(({ title }) => title);
  assert.deepEqual(await titles(""), ["A loop in Python", "Why is the sky blue?"]);
  assert.deepEqual(await titles("BLUE sky"), ["Why is the sky blue?"]);
  assert.deepEqual(await titles("blue loop"), []);
  await library.rename(sky.id, "  Colours\nof air ");
  assert.deepEqual(await titles("colours"), ["Colours of air"]);
  await library.remove(loop.id);
  assert.equal(await library.load(loop.id), null);
  assert.equal((await library.load(sky.id)).title, "Colours of air");
});

test("what was deleted is not found, and comes back whole as long as it is kept", async () => {
  const { library, made: [sky, loop] } = await setUp();
  const written = makeAnswer({ id: "a", parent: sky.tree.path()[0].id, model: "m", parameters: {}, transport: "sse", created: 3 });
  Object.assign(written, { content: "Scatt", stream: { id: "s", place: "1" }, events: [event(1)] });
  sky.tree.add(written);
  await library.save(sky, [written]);
  await library.remove(sky.id);
  await library.remove(sky.id);
  assert.deepEqual([await library.find("sky"), await library.load(sky.id)], [[], null]);
  await library.rename(sky.id, "Other");
  await library.remove(loop.id);
  assert.deepEqual((await library.deleted()).map(({ title }) => title), ["A loop in Python", "Why is the sky blue?"]);
  await library.recover(sky.id);
  await library.recover("none");
  const back = await library.load(sky.id);
  assert.deepEqual(back.tree.path().map(({ content }) => content), ["Why is the sky blue?", "Scatt"]);
  assert.deepEqual([back.tree.get("a").finish, back.tree.get("a").stream, back.tree.get("a").events.length], ["cut", null, 1]);
  assert.deepEqual((await library.deleted()).map(({ id }) => id), [loop.id]);
  await library.forget(loop.id);
  assert.deepEqual(await library.deleted(), []);
  await library.recover(loop.id);
  assert.equal(await library.load(loop.id), null);
});

test("of what was deleted, no more is kept than there is room for, and none for ever", async () => {
  let now = 0;
  const database = new MemoryDatabase();
  const library = new Library(database, { now: () => now });
  const remove = async (content) => {
    const conversation = library.create("");
    const node = readNode({ id: "n", role: "user", content, created: 1 });
    conversation.tree.add(node);
    await library.save(conversation, [node]);
    now += 1;
    await library.remove(conversation.id);
  };
  for (let number = 0; number < BIN.most + 2; number += 1) await remove(`${number}`);
  const titles = async () => (await library.deleted()).map(({ title }) => title);
  assert.deepEqual([(await titles()).length, (await titles()).at(-1)], [BIN.most, "2"]);
  await remove("x".repeat(0.7e6 * BIN.megabytes));
  await remove("y".repeat(0.7e6 * BIN.megabytes));
  assert.deepEqual((await titles()).map((title) => title[0]), ["y"]);
  await remove("z".repeat(1.1e6 * BIN.megabytes));
  assert.deepEqual((await titles()).map((title) => title[0]), ["z"]);
  now += BIN.days * 86_400_000;
  await library.prune();
  assert.equal((await library.deleted()).length, 1);
  now += 1;
  await library.prune();
  assert.deepEqual([await library.deleted(), await database.conversations()], [[], []]);
});

test("a conversation goes on with the model of its last answer, or with the one that was chosen in it", async () => {
  const { library, made: [sky] } = await setUp();
  assert.equal(modelNameOf(sky), null);
  const answer = (id, model, created) => makeAnswer({ id, parent: "n-20", model, parameters: {}, transport: "sse", created });
  for (const node of [answer("a", "one", 2), answer("b", "two", 3), answer("c", null, 4)]) sky.tree.add(node);
  assert.equal(modelNameOf(sky), null, "nobody knows who wrote the answer that is shown");
  sky.tree.show("a");
  assert.equal(modelNameOf(sky), "one");
  sky.model = "three";
  await library.save(sky);
  assert.equal(modelNameOf(await library.load(sky.id)), "three");
});

test("what is exported comes back under new ids, with its branches", async () => {
  const { library, made: [sky] } = await setUp();
  const other = readNode({ id: "other", role: "user", content: "Why is it red?", created: 2 });
  sky.tree.add(other);
  sky.tree.show("n-20");
  await library.save(sky, [other]);
  const text = await library.export([sky.id]);
  const elsewhere = new Library(new MemoryDatabase());
  assert.equal(await elsewhere.import(text), 1);
  const [summary] = await elsewhere.find("red");
  assert.notEqual(summary.id, sky.id);
  const copy = await elsewhere.load(summary.id);
  assert.deepEqual([copy.tree.size, copy.tree.path()[0].content, copy.system], [2, "Why is the sky blue?", "Be brief."]);
  assert.equal(titleOf(copy), "Why is the sky blue?");
});

test("each event of a growing answer is written once, few at a time, and all come back", async () => {
  const database = new CountingDatabase();
  const library = new Library(database);
  const conversation = library.create("");
  const node = conversation.tree.add(makeAnswer({ id: "a", parent: null, model: "m", parameters: {}, transport: "sse", created: 1 }));
  await library.save(conversation, [node]);
  for (const upTo of [3, 5, 1300]) {
    while (node.events.length < upTo) node.events.push(event(node.events.length));
    await library.saveNode(conversation, node);
  }
  assert.equal(database.written.reduce((sum, count) => sum + count), 1300);
  assert.ok(Math.max(...database.written) <= 500);
  const loaded = (await library.load(conversation.id)).tree.get("a");
  assert.deepEqual(loaded, node);
  loaded.events.push(event(1300));
  await library.saveNode(conversation, loaded);
  assert.equal(database.written.at(-1), 1);
  await library.removeNodes(conversation, [loaded]);
  assert.deepEqual(await database.partsOf(conversation.id), { nodes: [], pieces: [] });
});

test("a write that never finished adds nothing, and what older pages kept whole is read and kept anew", async () => {
  const database = new MemoryDatabase();
  const library = new Library(database);
  const conversation = library.create("");
  const node = conversation.tree.add(makeAnswer({ id: "a", parent: null, model: "m", parameters: {}, transport: "sse", created: 1 }));
  node.events.push(event(0));
  await library.save(conversation, [node]);
  await database.put(null, [], [{ conversation: conversation.id, node: "a", first: 1, events: [event(7)] }]);
  assert.deepEqual((await library.load(conversation.id)).tree.get("a").events, [event(0)]);
  await database.remove(conversation.id, ["a"]);
  await database.put(null, [{ ...node, conversation: conversation.id, events: [event(0), event(1)] }]);
  const old = (await library.load(conversation.id)).tree.get("a");
  assert.deepEqual(old.events, [event(0), event(1)]);
  await library.saveNode(conversation, old);
  assert.deepEqual((await library.load(conversation.id)).tree.get("a").events, [event(0), event(1)]);
});

test("a file that is none of ours is refused with a reason, and adds nothing", async () => {
  const { library } = await setUp();
  for (const [text, words] of [
    ["{", /not JSON/],
    ["[]", /no conversations/],
    [JSON.stringify({ format: "eagre.conversations", conversations: [{ messages: [{}] }] }), /Conversation 1.*no id/],
  ]) await assert.rejects(library.import(text), words);
  assert.equal((await library.find()).length, 2);
});

test("a conversation that begins with a file alone is called after it", async () => {
  const library = new Library(new MemoryDatabase());
  const conversation = library.create("");
  const attachments = [{ name: "tide.png", url: "data:image/png;base64,AAAA" }];
  conversation.tree.add(readNode({ id: "q", role: "user", content: "", attachments }));
  assert.equal(titleOf(conversation), "tide.png");
});

test("a copy has all of a conversation, or what leads to a message, and lives for itself", async () => {
  const { library, made: [sky] } = await setUp();
  const question = sky.tree.path()[0];
  const written = makeAnswer({ id: "a", parent: question.id, model: "m", parameters: {}, transport: "sse", created: 3 });
  Object.assign(written, { content: "Scatt", stream: { id: "s", place: "1" }, events: [event(1)] });
  for (const node of [written, readNode({ id: "b", parent: "a", role: "user", content: "More?", created: 4 })]) sky.tree.add(node);
  sky.allowedTools.push("time");
  const whole = await library.load((await library.copy(sky)).id);
  assert.deepEqual(whole.tree.path().map(({ content }) => content), ["Why is the sky blue?", "Scatt", "More?"]);
  assert.deepEqual([whole.title, whole.allowedTools], ["Why is the sky blue? (copy)", []]);
  const part = await library.load((await library.copy(sky, "a")).id);
  assert.deepEqual(part.tree.path().map(({ id }) => id), [question.id, "a"]);
  assert.deepEqual([part.tree.get("a").finish, part.tree.get("a").stream, part.tree.get("a").events.length], ["cut", null, 1]);
  assert.deepEqual([written.finish, written.stream.id], [null, "s"]);
});
