import assert from "node:assert/strict";
import { test } from "node:test";

import { MarkdownStream, parseMarkdown } from "../../../../static/js/markdown/stream.js";
import { processorTime } from "./processor_time.mjs";

/** The blocks of code of an answer. */
const codes = (blocks) => blocks.filter(({ attributes }) => attributes.class === "code").map((block) => block.children[1].children[0].children[0]);

test("an answer that is JSON is code, a member a line, and grows as it comes", () => {
  const text = '{"a": [1, -2.5e3, true], "b": {"c": "x, {y}\\""}, "d": {}, "e": []}';
  const [whole] = codes(parseMarkdown(text));
  assert.deepEqual(JSON.parse(whole), JSON.parse(text));
  assert.equal(whole.split("\n").length, 13);
  const stream = new MarkdownStream();
  let before = "";
  for (const [index, character] of [...text].entries()) {
    const [code] = codes(stream.feed(character).open);
    if (index < 2) continue;
    assert.ok(code.startsWith(before.trimEnd()), text.slice(0, index));
    before = code;
  }
  assert.equal(before, whole);
});

test("JSON in lines without indentation gets one", () => {
  assert.deepEqual(codes(parseMarkdown('{\n"city" : "Paris"\n}')), ['{\n  "city": "Paris"\n}\n']);
});

test("JSON in several indented lines stays as it is, and prose may follow it", () => {
  const blocks = parseMarkdown('\n{\n "a": 1\n}\n\nThat is it.');
  assert.deepEqual(codes(blocks), ['{\n "a": 1\n}\n']);
  assert.deepEqual(blocks.map(({ tag, start }) => [tag, start]), [["div", 1], ["p", 5]]);
  assert.equal(codes(parseMarkdown('[{"a": 1}]')).length, 1);
});

test("what only looks like JSON is prose", () => {
  for (const text of ["{x} is a set", "[1] Someone, 1999", '{"a": 1} and so on', '{"a" 1}', '["a"] or "b"', '{"a": oops}', '{"a": 1,}', "[]x", 'x\n{"a": 1}']) {
    assert.deepEqual(codes(parseMarkdown(text)), [], text);
  }
});

test("no text takes longer than its length allows", () => {
  for (const text of [`["${"x".repeat(1_000_000)}`, `[${"[".repeat(100_000)}`, `["${"\\\\".repeat(200_000)}`, `["a"${", 1".repeat(100_000)}`]) {
    assert.ok(processorTime(() => parseMarkdown(text)) < 2000, text.slice(0, 20));
  }
});
