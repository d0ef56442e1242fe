"""Anthropic's Python library: a whole message, a streamed one, and a tool that must be called.

pip install anthropic
"""

import os

from anthropic import Anthropic

client = Anthropic(base_url=os.environ.get("EAGRE_URL", "http://127.0.0.1:8000"), api_key="unused")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Name the capital of France in one sentence."}]

answer = client.messages.create(model=model, max_tokens=40, messages=messages, extra_body={"temperature": 0})
print(answer.content[0].text)

messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "What is it known for?"}]
with client.messages.stream(model=model, max_tokens=40, messages=messages) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()

tool = {
    "name": "tide",
    "description": "When the next high water is.",
    "input_schema": {
        "type": "object",
        "properties": {"harbour": {"type": "string", "enum": ["Bergen", "Brest"]}},
        "required": ["harbour"],
        "additionalProperties": False,
    },
}
answer = client.messages.create(
    model=model, max_tokens=60, messages=[{"role": "user", "content": "When is high water at Brest?"}], tools=[tool],
    tool_choice={"type": "any", "disable_parallel_tool_use": True},
)  # fmt: skip
print(answer.stop_reason, answer.content[0].input)
