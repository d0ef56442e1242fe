"""A conversation with OpenAI's Python library: a whole answer, then a streamed one.

pip install openai
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("EAGRE_URL", "http://127.0.0.1:8000") + "/v1", api_key="unused")
model = client.models.list().data[0].id

messages = [{"role": "user", "content": "Name the capital of France in one sentence."}]
answer = client.chat.completions.create(model=model, messages=messages, max_tokens=40, temperature=0)
print(answer.choices[0].message.content)

messages += [answer.choices[0].message, {"role": "user", "content": "And what is it known for?"}]
stream = client.chat.completions.create(
    model=model, messages=messages, max_tokens=40, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:
        print(f"\n{chunk.usage.completion_tokens} tokens")
