// Ollama's JavaScript library against the server at EAGRE_URL.
import assert from "node:assert/strict";
import test from "node:test";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.EAGRE_URL });
const model = "smollm2-135m-instruct";
const messages = [{ role: "user", content: "Name the capital of France in one sentence." }];
const options = { temperature: 0, num_predict: 80 };

test("a chat, whole and streamed", async () => {
  const whole = await client.chat({ model, messages, options });
  assert.match(whole.message.content, /Paris/);
  assert.ok(whole.done && whole.eval_count > 0);
  let text = "";
  let last;
  for await (const part of await client.chat({ model: `${model}:latest`, messages, options, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, whole.message.content);
  assert.equal(last.done, true);
});

test("a completion", async () => {
  const answer = await client.generate({ model, prompt: "The capital of France is", raw: true, options });
  assert.match(answer.response, /Paris/);
});

test("a schema", async () => {
  const properties = { city: { type: "string", enum: ["Paris", "Oslo"] }, days: { type: "integer", enum: [1, 2] } };
  const format = { type: "object", properties, required: ["city", "days"] };
  const answer = await client.chat({ model, messages, format, options });
  const given = JSON.parse(answer.message.content);
  assert.ok(["Paris", "Oslo"].includes(given.city) && [1, 2].includes(given.days));
});

test("a stream that is left", async () => {
  const stream = await client.generate({ model, prompt: "Once", raw: true, stream: true, options: { num_predict: 500 } });
  await assert.rejects(async () => {
    for await (const _part of stream) client.abort();
  }, { name: "AbortError" });
});

test("embeddings and models", async () => {
  assert.equal((await client.embed({ model, input: ["a", "b"] })).embeddings.length, 2);
  assert.ok((await client.list()).models.some((entry) => entry.model === model));
  assert.ok((await client.ps()).models.length > 0);
  assert.ok((await client.show({ model })).capabilities.includes("completion"));
});

test("an error is the library's own", async () => {
  await assert.rejects(client.chat({ model: "none", messages }), { name: "ResponseError", status_code: 404 });
});
