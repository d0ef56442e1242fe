import assert from "node:assert/strict";
import { test } from "node:test";

import { fit, parseMap } from "../../../../static/js/engine/page_map.js";

test("a map of run lengths gives one state for each page", () => {
  assert.deepEqual([...parseMap("2a3scf")], [2, 2, 3, 3, 3, 1, 0]);
  assert.deepEqual([...parseMap("")], []);
  assert.equal(parseMap("4096f").length, 4096);
});

test("cells are as large as the room allows, and never vanish", () => {
  for (const [cells, width] of [[10, 900], [600, 900], [4096, 900], [4096, 300], [1, 5]]) {
    const { cell, columns, rows } = fit(cells, width, 230);
    assert.ok(cell >= 3 && cell <= 9);
    assert.ok(columns * rows >= cells);
    assert.ok(rows * cell <= 230 || cell === 3);
  }
});
