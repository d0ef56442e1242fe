"""A stream that is lost in the middle and goes on at the very character, as behind a tunnel."""

import json
import os
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from itertools import islice

url = os.environ.get("EAGRE_URL", "http://127.0.0.1:8000")


def events(response: HTTPResponse) -> Iterator[tuple[str, str]]:
    """The id and the data of each event."""
    event_id = ""
    for line in response:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "id":
            event_id = value
        elif name == "data":
            yield event_id, value


body = {"prompt": "Once upon a time", "max_tokens": 30, "seed": 1, "stream": True, "resumable": True}
request = urllib.request.Request(
    url + "/v1/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
)
text = last_id = ""
with urllib.request.urlopen(request) as response:
    stream = response.headers["X-Eagre-Stream"]
    for event_id, data in islice(events(response), 10):
        text += json.loads(data)["choices"][0]["text"]
        last_id = event_id
print(f"{text}\n--- the connection is lost; the generation goes on ---")

again = urllib.request.Request(f"{url}/v1/streams/{stream}", headers={"Last-Event-ID": last_id})
with urllib.request.urlopen(again) as response:
    for _, data in events(response):
        if data != "[DONE]":
            text += json.loads(data)["choices"][0]["text"]
print(text)
