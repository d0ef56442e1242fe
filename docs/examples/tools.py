"""The model calls a function of this program, is told the result, and answers.

pip install openai
"""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("EAGRE_URL", "http://127.0.0.1:8000") + "/v1", api_key="unused")
model = client.models.list().data[0].id


def tide(harbour: str) -> str:
    """What the model wants to know."""
    return f"High water at {harbour} is at {7 if harbour == 'Bergen' else 9} o'clock."


TOOL = {
    "type": "function",
    "function": {
        "name": "tide",
        "description": "When the next high water is.",
        "parameters": {
            "type": "object",
            "properties": {"harbour": {"type": "string", "enum": ["Bergen", "Brest"]}},
            "required": ["harbour"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}

messages = [{"role": "user", "content": "When is high water at Brest?"}]
# "required" forces a call, which always follows the schema; "auto" leaves it to the model.
answer = client.chat.completions.create(
    model=model, messages=messages, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=60
)
messages.append(answer.choices[0].message)
for call in answer.choices[0].message.tool_calls:
    arguments = json.loads(call.function.arguments)
    result = tide(**arguments)
    print(f"{call.function.name}({arguments}): {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

answer = client.chat.completions.create(
    model=model, messages=messages, tools=[TOOL], tool_choice="none", max_tokens=40, temperature=0
)
print(answer.choices[0].message.content)
