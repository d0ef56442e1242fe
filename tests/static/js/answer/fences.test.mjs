import assert from "node:assert/strict";
import { test } from "node:test";

import { FenceSplitter } from "../../../../static/js/answer/fences.js";

const FENCED = "Look:\n```js\nlet a = `b`;\n``\n```\nand ``inline``\n   ````\n```\nstill code\n`````\n``";
const PIECES = [
  { kind: "prose", text: "Look:\n" },
  { kind: "open", language: "js" },
  { kind: "code", text: "let a = `b`;\n``\n" },
  { kind: "close" },
  { kind: "prose", text: "and ``inline``\n" },
  { kind: "open", language: "" },
  { kind: "code", text: "```\nstill code\n" },
  { kind: "close" },
  { kind: "prose", text: "``" },
];

/** Pieces of one kind that follow one another, as one. */
function merge(pieces) {
  const merged = [];
  for (const piece of pieces) {
    if ("text" in piece && merged.at(-1)?.kind === piece.kind) merged.at(-1).text += piece.text;
    else merged.push({ ...piece });
  }
  return merged;
}

test("the same pieces whatever the three chunks that the text is cut into", () => {
  for (let first = 0; first <= FENCED.length; first += 1) {
    for (let second = first; second <= FENCED.length; second += 1) {
      const splitter = new FenceSplitter();
      const pieces = [FENCED.slice(0, first), FENCED.slice(first, second), FENCED.slice(second)]
        .flatMap((chunk) => splitter.feed(chunk))
        .concat(splitter.end());
      assert.deepEqual(merge(pieces), PIECES, `cut at ${first} and ${second}`);
    }
  }
});

test("prose is given at once; only what may become a fence is held back", () => {
  const splitter = new FenceSplitter();
  assert.deepEqual(splitter.feed("Hello"), [{ kind: "prose", text: "Hello" }]);
  assert.deepEqual(splitter.feed("\n``"), [{ kind: "prose", text: "\n" }]);
  assert.deepEqual(splitter.feed("x"), [{ kind: "prose", text: "``x" }]);
});

test("a block that the model does not close is closed at the end", () => {
  const splitter = new FenceSplitter();
  const pieces = [...splitter.feed("```\ncode\n``"), ...splitter.end()];
  assert.deepEqual(merge(pieces), [{ kind: "open", language: "" }, { kind: "code", text: "code\n``" }, { kind: "close" }]);
});
