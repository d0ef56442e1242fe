import assert from "node:assert/strict";
import { test } from "node:test";

import { DEFAULTS, loadSettings, normalise, samplingOf, saveSettings } from "../../../../static/js/page/settings.js";

function memoryStorage() {
  const kept = new Map();
  return { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) };
}

test("kept between visits; anything odd becomes its default", () => {
  const storage = memoryStorage();
  const settings = { ...DEFAULTS, transport: "websocket", temperature: 0, seed: 7 };
  saveSettings(() => storage, settings);
  assert.deepEqual(loadSettings(() => storage), settings);
  const odd = { transport: 1, temperature: 9, topP: 0, maxTokens: -1, seed: 1.5, system: null };
  for (const raw of [odd, null, 5, "text", []]) assert.deepEqual(normalise(raw), { ...DEFAULTS });
});

test("a browser without storage has the defaults and no error", () => {
  const forbidden = () => {
    throw new DOMException("denied", "SecurityError");
  };
  assert.deepEqual(loadSettings(forbidden), { ...DEFAULTS });
  saveSettings(forbidden, DEFAULTS);
});

test("those that were chosen become request parameters", () => {
  assert.deepEqual(samplingOf(DEFAULTS), {});
  assert.deepEqual(samplingOf({ ...DEFAULTS, seed: 0, temperature: 0 }), { temperature: 0, seed: 0 });
});

test("what the first page sent without being asked counts as not chosen; any other value stays", () => {
  const unchosen = { temperature: 0.8, topP: 0.95, maxTokens: 256 };
  assert.deepEqual(normalise(unchosen), { ...DEFAULTS });
  assert.equal(normalise({ ...unchosen, temperature: 0.7 }).temperature, 0.7);
  assert.equal(normalise({ ...unchosen, version: DEFAULTS.version }).temperature, 0.8);
});
