"""Answers of a certain form: an object of a class, one of several words, a text that a regular expression matches.

pip install openai
"""

import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=os.environ.get("EAGRE_URL", "http://127.0.0.1:8000") + "/v1", api_key="unused")
model = client.models.list().data[0].id


class Place(BaseModel):
    """What is filled in. Small models need such bounds to come to an end."""

    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]
    is_by_the_sea: bool


def ask(question: str) -> list:
    return [{"role": "user", "content": question}]


answer = client.chat.completions.parse(
    model=model, messages=ask("Where is Lisbon?"), response_format=Place, max_tokens=60, temperature=0
)
print(answer.choices[0].message.parsed)

for form in ({"choice": ["yes", "no"]}, {"regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}):
    answer = client.chat.completions.create(
        model=model, messages=ask("Is it today?"), max_tokens=20, extra_body={"structured_outputs": form}
    )
    print(answer.choices[0].message.content)
