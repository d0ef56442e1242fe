import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

const PAGE = readFileSync(new URL("../../../../static/index.html", import.meta.url), "utf8");
const BODY = PAGE.slice(PAGE.indexOf("<body>")).replace(/<noscript>.*?<\/noscript>/s, "");
const NAMES = ["Eagre", "SSE", "WebSocket", "Responses"]; // the same in every language

test("what the document shows comes from the catalogue", () => {
  const shown = [...BODY.matchAll(/>([^<]*\p{L}[^<]*)</gu)].map(([, text]) => text.trim());
  assert.deepEqual(shown.filter((text) => !NAMES.includes(text)), []);
  const attributes = [...BODY.matchAll(/ ((?:aria-label|placeholder|title|alt)="[^"]*\p{L}[^"]*")/gu)].map(([, text]) => text);
  assert.deepEqual(attributes, []);
});
