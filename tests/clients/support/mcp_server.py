"""A server of the Model Context Protocol over standard input and output, with one tool."""

from __future__ import annotations

import json
import sys
from typing import Any

WORD = "heron"
TOOL = {
    "name": "lookup",
    "description": "Returns the word of the day.",
    "inputSchema": {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request."""
    match method:
        case "initialize":
            version = params.get("protocolVersion", "2025-06-18")
            info = {"name": "words", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"The word is {WORD}."}], "isError": False}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked and "method" in asked:
            result = answer(asked["method"], asked.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}) + "\n")
            sys.stdout.flush()
