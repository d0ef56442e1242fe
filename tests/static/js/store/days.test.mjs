import assert from "node:assert/strict";
import { test } from "node:test";

import { byDay } from "../../../../static/js/store/days.js";

test("conversations are grouped by the day on which they were last written to", () => {
  const now = new Date(2026, 10, 27, 9);
  const at = (...date) => ({ updated: new Date(2026, ...date).getTime() });
  const summaries = [at(10, 27, 8), at(10, 27, 0), at(10, 26, 23), at(10, 21), at(10, 2), at(8, 30), at(8, 1)];
  const groups = byDay(summaries, now).map(({ title, summaries: of }) => [title, of.length]);
  assert.deepEqual(groups, [["Today", 2], ["Yesterday", 1], ["Last 7 days", 1], ["Last 30 days", 1], ["September 2026", 2]]);
});
