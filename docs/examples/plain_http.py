"""A streamed chat without any library: server-sent events, read from the socket line by line."""

import json
import os
import urllib.request

body = {
    "messages": [{"role": "user", "content": "Name the capital of France in one sentence."}],
    "max_tokens": 40,
    "temperature": 0,
    "stream": True,
}
request = urllib.request.Request(
    os.environ.get("EAGRE_URL", "http://127.0.0.1:8000") + "/v1/chat/completions",
    data=json.dumps(body).encode(),
    headers={"Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as response:
    for line in response:
        data = line.decode().strip().removeprefix("data: ")
        if data == "[DONE]":
            print()
        elif data and not data.startswith(":"):  # a line that begins with a colon is a comment, such as a ping
            event = json.loads(data)
            if "error" in event:
                raise SystemExit(event["error"]["message"])
            print(event["choices"][0]["delta"].get("content", ""), end="", flush=True)
