"""Two generations at once on one WebSocket; one of them is cancelled.

pip install websockets
"""

import json
import os

from websockets.sync.client import connect

url = os.environ.get("EAGRE_URL", "http://127.0.0.1:8000").replace("http", "ws", 1)
texts = {"story": "", "list": ""}
with connect(url + "/v1/stream") as socket:
    socket.send(json.dumps({"type": "generate", "id": "story", "prompt": "Once upon a time", "max_tokens": 500}))
    socket.send(json.dumps({"type": "generate", "id": "list", "prompt": "Rivers: Rhine, Nile,", "max_tokens": 20}))
    running = set(texts)
    while running:
        message = json.loads(socket.recv())
        match message["type"]:
            case "delta":
                texts[message["id"]] += message["text"]
            case "done":
                running.discard(message["id"])
                print(f"{message['id']} ended with {message['finish_reason']}: {texts[message['id']]!r}")
                if message["id"] == "list" and "story" in running:
                    socket.send(json.dumps({"type": "cancel", "id": "story"}))
            case "error":
                raise SystemExit(message["error"]["message"])
