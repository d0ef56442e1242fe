import assert from "node:assert/strict";
import { test } from "node:test";

import { messagesOf, noteOf, picturesOf } from "../../../../static/js/store/messages.js";
import { Tree, makeAnswer, readNode } from "../../../../static/js/store/tree.js";

const node = (id, parent, created = 0) => readNode({ id, parent, role: "user", content: id, created });
const ids = (nodes) => nodes.map(({ id }) => id);

test("a new node is shown, an older branch can be shown again, with what was below it", () => {
  const tree = new Tree();
  for (const [id, parent] of [["a", null], ["b", "a"], ["c", "b"], ["d", "a"]]) tree.add(node(id, parent));
  assert.deepEqual(ids(tree.path()), ["a", "d"]);
  assert.deepEqual(ids(tree.siblings("d")), ["b", "d"]);
  tree.show("b");
  assert.deepEqual(ids(tree.path()), ["a", "b", "c"]);
  assert.throws(() => tree.add(node("a", null)), /already/);
  assert.throws(() => tree.add(node("z", "none")), /no node none/);
});

test("whatever is added, shown and removed: a copy of the tree is the same, and every path ends at a leaf", () => {
  let seed = 7;
  const draw = (limit) => {
    seed = (seed * 48271) % 0x7fffffff;
    return seed % limit;
  };
  for (let round = 0; round < 40; round += 1) {
    const tree = new Tree();
    for (let step = 0; step < 30; step += 1) {
      const known = [null, ...ids(tree.nodes())];
      const target = known[draw(known.length)];
      const kind = draw(5);
      if (kind < 3) tree.add(node(`${round}-${step}`, target, draw(3)));
      else if (target !== null && kind === 3) tree.show(target);
      else if (target !== null) {
        const below = ids(tree.nodes()).filter((id) => ids(tree.pathTo(id)).includes(target));
        assert.deepEqual(tree.remove(target).sort(), below.sort());
      }
      const path = tree.path();
      if (tree.size > 0) assert.deepEqual(tree.childrenOf(path.at(-1).id), []);
      path.forEach(({ parent }, index) => assert.equal(parent, path[index - 1]?.id ?? null));
      const copy = new Tree(tree.nodes(), tree.chosen());
      assert.deepEqual(ids(copy.path()), ids(path));
      assert.equal(copy.size, tree.size);
    }
  }
});

test("a node of a file is checked, and an answer that was being written there is cut", () => {
  assert.equal(readNode({ id: "x", role: "assistant", content: "", finish: null, stream: { id: "s" } }).finish, "cut");
  for (const [raw, words] of [
    [null, /not an object/],
    [{ role: "user", content: "" }, /no id/],
    [{ id: "x", role: "system", content: "" }, /role of message x/],
    [{ id: "x", role: "user", content: 1 }, /content of message x/],
  ]) assert.throws(() => readNode(raw), words);
});

test("the messages of a path: files in fences that they cannot close, calls and their results, no empty answer", () => {
  const question = { ...node("q", null), content: "Read it.", attachments: [{ name: "a.md", text: "```\nx\n```" }] };
  const answer = { ...makeAnswer({ id: "r", parent: "q", model: "m", parameters: { seed: 3 }, transport: "sse", created: 0 }) };
  assert.equal(answer.seed, 3);
  answer.toolCalls = [{ id: "c1", name: "f", arguments: "{}" }];
  const result = readNode({ id: "t", parent: "r", role: "tool", content: "42", toolCallId: "c1" });
  const empty = { ...answer, id: "e", toolCalls: [] };
  assert.deepEqual(messagesOf(" ", [question, answer, result, node("u", "t"), empty, node("v", "e")]), [
    { role: "user", content: "a.md\n````\n```\nx\n```\n````\n\nRead it." },
    { role: "assistant", content: "", tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "c1", content: "42" },
    { role: "user", content: "v" },
  ]);
  assert.deepEqual(messagesOf("Be brief.", [])[0], { role: "system", content: "Be brief." });
});

test("pictures come first, as parts, or as notes where the model does not see", () => {
  const url = "data:image/png;base64,AAAA";
  const asked = { ...node("q", null), content: "What?", attachments: [{ name: "a.txt", text: "x" }, { name: "b.png", url }] };
  const silent = { ...node("r", "q"), content: "", attachments: [{ name: "b.png", url }] };
  const answer = { ...makeAnswer({ id: "s", parent: "q", model: "m", parameters: {}, transport: "sse", created: 0 }), content: "a" };
  const picture = { type: "image_url", image_url: { url } };
  assert.deepEqual(messagesOf("", [asked, answer, silent]).map(({ content }) => content), [
    [picture, { type: "text", text: "a.txt\n```\nx\n```\n\nWhat?" }], "a", [picture],
  ]);
  const [seen] = messagesOf("", [asked], noteOf);
  assert.match(seen.content, /^\[An image was left out.*\]\n\na\.txt/);
  assert.deepEqual(picturesOf([asked, answer, silent]).map(({ name }) => name), ["b.png", "b.png"]);
});
