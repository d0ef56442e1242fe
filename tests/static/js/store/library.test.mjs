import assert from "node:assert/strict";
import { test } from "node:test";

import { MemoryDatabase } from "../../../../static/js/store/database.js";
import { Library, titleOf } from "../../../../static/js/store/library.js";
import { readNode } from "../../../../static/js/store/tree.js";

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

test("a file that is none of ours is refused with a reason, and adds nothing", async () => {
  const { library } = await setUp();
  for (const [text, words] of [
    ["{", /not JSON/],
    ["[]", /no conversations/],
    [JSON.stringify({ format: "eagre.conversations", conversations: [{ messages: [{}] }] }), /Conversation 1.*no id/],
  ]) await assert.rejects(library.import(text), words);
  assert.equal((await library.find()).length, 2);
});
