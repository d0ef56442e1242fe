// The official JavaScript library of Anthropic's API against the server at EAGRE_URL.
import assert from "node:assert/strict";
import test from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.EAGRE_URL, apiKey: "none", maxRetries: 0 });
const model = "smollm2-135m-instruct";
const ask = [{ role: "user", content: "Name the capital of France in one sentence." }];
const limits = { model, max_tokens: 80, temperature: 0 };
const input_schema = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Oslo"] }, days: { type: "integer", enum: [1, 2] } },
  required: ["city", "days"],
  additionalProperties: false,
};
const tools = [{ name: "weather", description: "The weather of a city.", input_schema }];

function assertWeather(given) {
  assert.ok(["Paris", "Oslo"].includes(given.city) && [1, 2].includes(given.days));
}

test("a plain answer", async () => {
  const answer = await client.messages.create({ ...limits, messages: ask });
  assert.match(answer.content[0].text, /Paris/);
});

test("a stream", async () => {
  const kinds = [];
  for await (const event of await client.messages.create({ ...limits, messages: ask, stream: true })) {
    kinds.push(event.type);
  }
  assert.deepEqual([kinds[0], kinds.at(-1)], ["message_start", "message_stop"]);
});

test("the streaming helper", async () => {
  const stream = client.messages.stream({ ...limits, messages: ask });
  const deltas = [];
  stream.on("text", (delta) => deltas.push(delta));
  assert.equal((await stream.finalMessage()).content[0].text, deltas.join(""));
});

test("three turns", async () => {
  const messages = [...ask];
  for (const content of ["And of Norway?", "Thank you."]) {
    const answer = await client.messages.create({ ...limits, messages });
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content });
  }
  assert.ok((await client.messages.create({ ...limits, messages })).content[0].text);
});

test("structured output", async () => {
  const output_config = { format: { type: "json_schema", schema: input_schema } };
  const answer = await client.messages.create({ ...limits, messages: ask, output_config });
  assertWeather(JSON.parse(answer.content[0].text));
});

test("a tool and its result", async () => {
  const tool_choice = { type: "any", disable_parallel_tool_use: true };
  const answer = await client.messages.create({ ...limits, messages: ask, tools, tool_choice });
  assert.equal(answer.stop_reason, "tool_use");
  const [call] = answer.content;
  assertWeather(call.input);
  const messages = [
    ...ask,
    { role: "assistant", content: answer.content },
    { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "Sunny." }] },
  ];
  assert.ok(await client.messages.create({ ...limits, messages, tools }));
  const streamed = await client.messages.stream({ ...limits, messages: ask, tools, tool_choice }).finalMessage();
  assertWeather(streamed.content[0].input);
});

test("counted tokens and models", async () => {
  assert.ok((await client.messages.countTokens({ model, messages: ask })).input_tokens > 0);
  const ids = [];
  for await (const one of client.models.list()) ids.push(one.id);
  assert.deepEqual(ids, [model]);
});

test("errors are its exceptions", async () => {
  await assert.rejects(client.messages.create({ ...limits, model: "none", messages: ask }), Anthropic.NotFoundError);
  await assert.rejects(client.messages.create({ ...limits, messages: [] }), Anthropic.BadRequestError);
});
