// A streamed chat in Node or Deno, without any package. A `break` closes the connection, which stops the generation.
const url = process.env.EAGRE_URL ?? "http://127.0.0.1:8000";
const answer = await fetch(`${url}/v1/chat/completions`, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({
    messages: [{ role: "user", content: "Name the capital of France in one sentence." }],
    max_tokens: 40, temperature: 0, stream: true,
  }),
});
if (!answer.ok) throw new Error((await answer.json()).error.message);

let rest = "";
for await (const text of answer.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + text).split("\n");
  rest = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const event = JSON.parse(line.slice("data: ".length));
    if (event.error) throw new Error(event.error.message);
    process.stdout.write(event.choices[0].delta.content ?? "");
  }
}
process.stdout.write("\n");
