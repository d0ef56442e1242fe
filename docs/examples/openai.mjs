// OpenAI's JavaScript library: npm install openai
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.EAGRE_URL ?? "http://127.0.0.1:8000"}/v1`, apiKey: "unused" });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Name the capital of France in one sentence." }];

const stream = client.chat.completions.stream({ model, messages, max_tokens: 40, temperature: 0 });
stream.on("content", (delta) => process.stdout.write(delta));
messages.push((await stream.finalChatCompletion()).choices[0].message);

messages.push({ role: "user", content: "And what is it known for?" });
const answer = await client.chat.completions.create({ model, messages, max_tokens: 40 });
console.log(`\n${answer.choices[0].message.content}`);
