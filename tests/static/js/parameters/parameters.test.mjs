import assert from "node:assert/strict";
import { test } from "node:test";

import { matching } from "../../../../static/js/page/palette.js";
import {
  GROUPS, describeParameters, readParameters, readValue, sentParameters, writeValue,
} from "../../../../static/js/parameters/catalogue.js";
import { limitError } from "../../../../static/js/parameters/limits.js";
import { Presets } from "../../../../static/js/parameters/presets.js";
import { addTool, readSchema, readTools, schemaOfRows } from "../../../../static/js/parameters/structure.js";

test("what is read from a control is written back the same", () => {
  for (const [name, raw, value] of [
    ["top_k", "40", 40],
    ["stop", "END\n\\n\nsay \"x\"", ["END", "\n", 'say "x"']],
    ["stop_token_ids", "1, 2 3", [1, 2, 3]],
    ["logit_bias", "12: -5\n7=1.5", { 12: -5, 7: 1.5 }],
    ["chat_template_kwargs", '{"enable_thinking": false}', { enable_thinking: false }],
    ["reasoning_effort", "low", "low"],
    ["cache_salt", "mine", "mine"],
  ]) {
    assert.deepEqual(readValue(name, raw), { value, error: null }, name);
    assert.deepEqual(readValue(name, writeValue(name, value)).value, value, name);
  }
});

test("a value that asks for nothing is not sent, and one that is none is explained", () => {
  assert.deepEqual(readValue("top_k", "0"), { value: 0, error: null }, "the model may recommend another one");
  for (const [name, raw] of [["top_k", ""], ["ignore_eos", false], ["include_reasoning", true], ["stop", ""]]) {
    assert.deepEqual(readValue(name, raw), { value: undefined, error: null });
  }
  assert.match(readValue("stop_token_ids", "a").error, /numbers/);
  assert.match(readValue("logit_bias", "x: 1").error, /token id/);
  assert.match(readValue("chat_template_kwargs", "[]").error, /object/);
  assert.deepEqual(readParameters({ top_k: 4, stop: 5, ignore_eos: true, nothing: 1, logit_bias: null }), { top_k: 4, ignore_eos: true });
  assert.deepEqual(readParameters(null), {});
});

test("completions are sent no parameters of chats", () => {
  const values = { top_logprobs: 3, parse_special: true, min_p: 0.1 };
  assert.deepEqual(sentParameters(values, true), { ...values, logprobs: true });
  assert.deepEqual(sentParameters(values, false), { min_p: 0.1 });
});

test("words and limits come from the server's document", () => {
  const properties = {
    top_k: { anyOf: [{ type: "integer", minimum: -1 }, { type: "null" }], description: "Only so many." },
    min_p: { anyOf: [{ type: "null" }, { type: "number", minimum: 0, maximum: 1 }], description: "Cuts." },
  };
  const described = describeParameters({ components: { schemas: { ChatCompletionRequest: { properties } } } });
  assert.deepEqual(described.min_p, { note: "Cuts.", minimum: 0, above: undefined, maximum: 1, isWhole: false });
  assert.ok(described.top_k.isWhole);
  assert.equal(described.top_k.note, "Only so many.");
  assert.deepEqual(describeParameters(null), {});
  assert.ok(GROUPS.length > 3);
});

test("a number outside its limits is told with them", () => {
  for (const [text, limits, told] of [
    ["-5", { minimum: -1 }, "top k is −5; it must be at least −1."],
    ["0", { above: 0, maximum: 1 }, "top k is 0; it must be above 0, at most 1."],
    ["8192", { minimum: 1, maximum: 8191, isWhole: true }, "top k is 8192; it must be from 1 to 8191."],
    ["1.5", { isWhole: true }, "top k is 1.5; it must be a whole number."],
    ["?", {}, "top k is not a number."],
    ["7", { minimum: 1, maximum: 7, isWhole: true }, null],
    ["7", {}, null],
  ]) assert.equal(limitError("top k", text, limits), told);
});

test("tools are taken in OpenAI's shape or alone, and what is wrong with them is said", () => {
  const tool = { name: "weather", parameters: { type: "object", properties: { city: { type: "string" } } } };
  const wanted = [{ type: "function", function: tool }];
  for (const given of [tool, [tool], wanted]) assert.deepEqual(readTools(JSON.stringify(given)).value, wanted);
  assert.deepEqual(readTools("  "), { value: null, error: null });
  for (const [text, words] of [
    ["{", /not JSON/],
    ["[1]", /Tool 1 is not an object/],
    ['{"name": "a b"}', /Tool 1 needs a name/],
    ['[{"name": "a"}, {"name": "a"}]', /Two functions are called a/],
    ['{"name": "a", "parameters": {"properties": {"x": {"type": "text"}}}}', /parameters of a, x: there is no type "text"/],
  ]) assert.match(readTools(text).error, words);
});

test("a schema and a function are made from rows", () => {
  const rows = [
    { name: "city", type: "string", description: "where", isRequired: true },
    { name: " ", type: "string", description: "", isRequired: true },
    { name: "days", type: "array", description: "", isRequired: false },
  ];
  const schema = schemaOfRows(rows);
  assert.deepEqual(schema.required, ["city"]);
  assert.deepEqual(Object.keys(schema.properties), ["city", "days"]);
  assert.equal(readSchema(JSON.stringify(schema)).error, null);
  const once = addTool("", { name: "f", description: "d", rows });
  assert.equal(readTools(addTool(once.text, { name: "g", description: "", rows: [] }).text).value.length, 2);
  assert.match(addTool(once.text, { name: "f", description: "", rows }).error, /Two functions/);
});

test("presets: the reader's own are kept beside those that everybody has", () => {
  const kept = new Map();
  const storage = () => ({ getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) });
  const presets = new Presets(storage);
  presets.save("Mine", { temperature: 1, topP: 0.5, extra: { top_k: 3 }, seed: 4 });
  assert.throws(() => presets.save("Greedy", {}), /everybody/);
  const again = new Presets(storage);
  assert.deepEqual(again.get("Mine"), { temperature: 1, topP: 0.5, extra: { top_k: 3 } });
  assert.ok(again.isOwn("Mine") && again.names.includes("Greedy"));
  again.remove("Mine");
  assert.equal(new Presets(storage).get("Mine"), null);
});

test("the palette finds commands by all words, those that begin with them first", () => {
  const commands = ["Go to Chat", "Chat: new", "Stop"].map((name) => ({ name }));
  assert.deepEqual(matching(commands, "chat").map(({ name }) => name), ["Chat: new", "Go to Chat"]);
  assert.equal(matching(commands, "").length, 3);
  assert.equal(matching(commands, "to x").length, 0);
});
