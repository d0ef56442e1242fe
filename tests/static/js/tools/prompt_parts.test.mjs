import assert from "node:assert/strict";
import test from "node:test";

import { fileOf, filesOf, filledIn, namesIn, textOf } from "../../../../static/js/tools/prompt_parts.js";

const PARTS = [
  { type: "text", text: "Read this" },
  { type: "resource", resource: { uri: "file:///notes/tide%20table.md", text: "high at noon" } },
  { type: "image", mimeType: "image/png", data: btoa("PNG") },
  { type: "text", text: "and answer." },
];

test("texts of a message, and its files", async () => {
  assert.equal(textOf(PARTS), "Read this\n\nand answer.");
  const [table, picture] = filesOf(PARTS);
  assert.deepEqual([table.name, await table.text()], ["tide table.md", "high at noon"]);
  assert.deepEqual([picture.name, picture.type, await picture.text()], ["image", "image/png", "PNG"]);
});

test("the content of a resource, also without a name", async () => {
  const file = fileOf({ uri: "sea://x/", mimeType: "application/pdf", blob: btoa("%PDF-") });
  assert.deepEqual([file.name, file.type, file.size], ["x", "application/pdf", 5]);
  assert.equal(fileOf({ uri: "100%", text: "" }, "mine").name, "mine");
  assert.equal(fileOf({ uri: "100%", text: "" }).name, "100%");
  assert.equal(fileOf({ uri: "file:///caf%E9.txt", text: "" }).name, "caf%E9.txt"); // no UTF-8
});

test("addresses with names in them", () => {
  assert.deepEqual(namesIn("file:///{+path}/{name}"), ["path", "name"]);
  assert.equal(filledIn("file:///{+path}/{name}", { path: "a/b", name: "c d/e" }), "file:///a/b/c%20d%2Fe");
  assert.equal(filledIn("file:///{name}", {}), "file:///");
});
