// The official JavaScript library of OpenAI's API against the server at EAGRE_URL.
import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.EAGRE_URL}/v1`, apiKey: "none", maxRetries: 0 });
const model = "smollm2-135m-instruct";
const question = "Name the capital of France in one sentence.";
const ask = [{ role: "user", content: question }];
const limits = { model, max_tokens: 80, temperature: 0 };
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Oslo"] }, days: { type: "integer", enum: [1, 2] } },
  required: ["city", "days"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "weather", description: "Of a city.", parameters, strict: true } };

function assertWeather(text) {
  const given = JSON.parse(text);
  assert.ok(["Paris", "Oslo"].includes(given.city) && [1, 2].includes(given.days));
}

test("a plain answer", async () => {
  const answer = await client.chat.completions.create({ ...limits, messages: ask });
  assert.match(answer.choices[0].message.content, /Paris/);
});

test("a stream", async () => {
  let text = "";
  let usage = null;
  const stream = await client.chat.completions.create({
    ...limits, messages: ask, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage ??= chunk.usage;
  }
  assert.match(text, /Paris/);
  assert.ok(usage.completion_tokens > 0);
});

test("the streaming helper", async () => {
  const stream = client.chat.completions.stream({ ...limits, messages: ask });
  const deltas = [];
  stream.on("content", (delta) => deltas.push(delta));
  const final = await stream.finalChatCompletion();
  assert.equal(deltas.join(""), final.choices[0].message.content);
});

test("three turns", async () => {
  const messages = [...ask];
  for (const content of ["And of Norway?", "Thank you."]) {
    const answer = await client.chat.completions.create({ ...limits, messages });
    messages.push(answer.choices[0].message, { role: "user", content });
  }
  assert.ok((await client.chat.completions.create({ ...limits, messages })).choices[0].message.content);
});

test("structured output", async () => {
  const format = { type: "json_schema", json_schema: { name: "weather", strict: true, schema: parameters } };
  const answer = await client.chat.completions.parse({ ...limits, messages: ask, response_format: format });
  assertWeather(answer.choices[0].message.content);
});

test("a tool and its result", async () => {
  const messages = [{ role: "user", content: "How is the weather in Oslo?" }];
  const answer = await client.chat.completions.create({
    ...limits, messages, tools: [tool], tool_choice: "required", parallel_tool_calls: false,
  });
  const [call] = answer.choices[0].message.tool_calls;
  assertWeather(call.function.arguments);
  messages.push(answer.choices[0].message, { role: "tool", tool_call_id: call.id, content: "Sunny." });
  assert.ok(await client.chat.completions.create({ ...limits, messages, tools: [tool] }));
  const stream = client.chat.completions.stream({
    ...limits, messages: messages.slice(0, 1), tools: [tool], tool_choice: "required", parallel_tool_calls: false,
  });
  assertWeather((await stream.finalChatCompletion()).choices[0].message.tool_calls[0].function.arguments);
});

test("completions, embeddings and models", async () => {
  assert.ok((await client.completions.create({ ...limits, prompt: "The tide" })).choices[0].text);
  const base64 = await client.embeddings.create({ model, input: ["a", "b"] });
  const floats = await client.embeddings.create({ model, input: ["a", "b"], encoding_format: "float" });
  assert.equal(base64.data[1].embedding.length, floats.data[1].embedding.length);
  assert.ok(Math.abs(base64.data[1].embedding[0] - floats.data[1].embedding[0]) < 1e-6);
  const ids = [];
  for await (const one of client.models.list()) ids.push(one.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
});

test("responses", async () => {
  const most = { model, max_output_tokens: 80, temperature: 0 };
  const first = await client.responses.create({ ...most, input: question });
  assert.match(first.output_text, /Paris/);
  const second = await client.responses.create({ ...most, input: "And?", previous_response_id: first.id });
  assert.equal((await client.responses.retrieve(second.id)).output_text, second.output_text);
  const third = await client.responses.create({
    ...most, input: [{ role: "user", content: question }, ...first.output, { role: "user", content: "Thank you." }],
  });
  assert.ok(third.output_text);
  const stream = client.responses.stream({ ...most, input: question });
  const deltas = [];
  stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
  assert.equal((await stream.finalResponse()).output_text, deltas.join(""));
  const format = { type: "json_schema", name: "weather", strict: true, schema: parameters };
  assertWeather((await client.responses.parse({ ...most, input: question, text: { format } })).output_text);
  const flat = { type: "function", name: "weather", description: "Of a city.", parameters, strict: true };
  const called = await client.responses.create({
    ...most, input: question, tools: [flat], tool_choice: "required", parallel_tool_calls: false,
  });
  assertWeather(called.output[0].arguments);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
});

test("conversations", async () => {
  const conversation = await client.conversations.create({ metadata: { a: "b" } });
  await client.responses.create({ model, max_output_tokens: 20, input: question, conversation: conversation.id });
  const items = [];
  for await (const item of client.conversations.items.list(conversation.id)) items.push(item.role);
  assert.deepEqual(items, ["assistant", "user"]);
  assert.ok((await client.conversations.delete(conversation.id)).deleted);
});

test("errors are its exceptions", async () => {
  await assert.rejects(client.chat.completions.create({ messages: ask, model: "none" }), OpenAI.NotFoundError);
  await assert.rejects(
    client.chat.completions.create({ ...limits, messages: ask, temperature: 3 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature",
  );
});

test("a stream that is left", async () => {
  const stream = await client.chat.completions.create({ ...limits, messages: ask, stream: true, max_tokens: 2000 });
  for await (const _ of stream) break;
  assert.ok(stream.controller.signal.aborted);
});
