"""OpenAI's Responses: typed events, a second turn that only names the first, and work in the background.

pip install openai
"""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("EAGRE_URL", "http://127.0.0.1:8000") + "/v1", api_key="unused")
model = client.models.list().data[0].id

with client.responses.stream(
    model=model, input="Name the capital of France in one sentence.", max_output_tokens=40, temperature=0
) as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    first = stream.get_final_response()
print()

second = client.responses.create(
    model=model, previous_response_id=first.id, input="And what is it known for?", max_output_tokens=40
)
print(second.output_text)

# Nobody has to stay connected to this one; whoever comes back reads the events behind the last one that it has.
begun = client.responses.create(model=model, input="Count to five.", background=True, max_output_tokens=30)
for event in client.responses.retrieve(begun.id, stream=True, starting_after=0):
    if event.type == "response.output_text.done":
        print(event.text)
