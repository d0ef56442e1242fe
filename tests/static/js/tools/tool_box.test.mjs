import assert from "node:assert/strict";
import test from "node:test";

import { BuiltinTools } from "../../../../static/js/tools/builtin.js";
import { ToolBox } from "../../../../static/js/tools/tool_box.js";

const source = (name, tools, callTool = async (tool, args) => ({ text: `${name}.${tool} ${JSON.stringify(args)}`, isError: false })) => ({
  name,
  listTools: async () => tools.map((tool) => ({ name: tool, description: "", inputSchema: { type: "object" } })),
  callTool,
  close: async () => {},
});
const named = ({ tools }) => tools.map((tool) => tool.function.name);

test("tools keep their names where these are unambiguous, and each call goes to its own server", async () => {
  const box = new ToolBox([source("one", ["find", "read file"]), source("two", ["find"])]);
  assert.deepEqual(named(await box.load(["one", "two"])), ["find", "read_file", "two__find"]);
  assert.equal((await box.run({ name: "two__find", arguments: '{"a":1}' })).text, 'two.find {"a":1}');
  assert.equal((await box.run({ name: "read_file", arguments: "" })).text, "one.read file {}");
  assert.deepEqual(box.describe("two__find"), { source: "two", tool: "find" });
  assert.deepEqual(named(await box.load(["two"])), ["find"]);
  assert.ok(!box.has("read_file"));
});

test("names are made fit for functions and stay different", async () => {
  const long = "n".repeat(100);
  const box = new ToolBox([source("a", [long, `${long}x`, "ü"])]);
  const names = named(await box.load(["a"]));
  assert.equal(new Set(names).size, 3);
  for (const name of names) assert.match(name, /^[A-Za-z0-9_-]{1,64}$/);
});

test("a server that fails keeps no other away, and a failed call is a text", async () => {
  const broken = { ...source("broken", []), listTools: async () => { throw new Error("cannot be reached"); } };
  const failing = source("failing", ["do"], async () => { throw new Error("out of paper"); });
  const box = new ToolBox([broken, failing]);
  const { tools, errors } = await box.load(["broken", "failing", "unknown"]);
  assert.equal(tools.length, 1);
  assert.deepEqual(errors, [{ name: "broken", message: "cannot be reached" }]);
  assert.deepEqual(await box.run({ name: "do", arguments: "{}" }), { text: "out of paper", isError: true });
  assert.equal((await box.run({ name: "do", arguments: "{" })).isError, true);
  assert.equal((await box.run({ name: "other", arguments: "{}" })).isError, true);
});

test("the page's own tools", async () => {
  const box = new ToolBox([new BuiltinTools({ now: () => new Date("2026-01-02T03:04:05Z") })]);
  assert.deepEqual(named(await box.load(["page"])), ["calculator", "time"]);
  assert.equal((await box.run({ name: "calculator", arguments: '{"expression": "6*7"}' })).text, "42");
  assert.match((await box.run({ name: "time", arguments: '{"time_zone": "Asia/Tokyo"}' })).text, /2 January 2026.*12:04:05/);
  assert.deepEqual(await box.run({ name: "time", arguments: '{"time_zone": "Mars"}' }), { text: "There is no time zone Mars.", isError: true });
  assert.equal((await box.run({ name: "calculator", arguments: "{}" })).isError, true);
});
