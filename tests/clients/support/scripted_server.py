"""A server whose model does a task with the tools that an agent offers.

It is started by `python -m tests.clients.support.scripted_server PORT`.

With `sees` behind the port, the model sees, and names the colours of its pictures instead.

The prompt is all that the model sees, as it is with any model; without `sees`, notes stand in the place of pictures, as
with `--ignore-media`. It runs in the project's own environment.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from sampling.host.params import SamplingParams
from server.cli.listeners import start_sites
from server.http.app import build_app, make_runner, read_keys
from server.serving.served_models import ServedModels
from server.startup.settings import ServerSettings
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.seeing_text_model import SeeingTextModel
from tests.fakes.text_model import EOS, FakeTextModel

TEMPLATE = (
    "{% for t in tools or [] %}<tool>{{ t.function.name }}</tool>{% endfor %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}{% endfor %}"
)
# What a test asks an agent for.
TASK, PICTURE, SEARCH, WORD = "DO-THE-TASK", "LOOK-AT-IT", "SEARCH-FOR-IT", "SAY-THE-WORD"
NOTE = "An image was left out here"
DONE, SEEN, FOUND = "The task is done.", "There was a picture that I cannot see.", "The search has ended."
PATCH = '*** Begin Patch\n*** Add File: b.txt\n+two "quoted"\n*** End Patch\n'
_SHELLS = ("exec_command", "shell_command", "shell", "Bash", "bash", "run_shell_command")


def answer(prompt: str) -> str:
    """What the model writes."""
    tools = re.findall(r"<tool>([^<]+)</tool>", prompt)
    asked = max((TASK, PICTURE, SEARCH, WORD), key=prompt.rfind)
    since = prompt[prompt.rfind(asked) :] if asked in prompt else ""
    num_done = since.count("[tool] ")
    path = re.search(r"PATH=([^\s\[]+)", since)
    if asked == PICTURE and since:
        if path is not None and num_done == 0 and "Read" in tools:
            return _call("Read", file_path=path[1])
        return SEEN if NOTE in prompt else "There is no picture."
    if asked == SEARCH and since and num_done == 0 and "WebSearch" in tools:
        return _call("WebSearch", query="eagre")
    if asked == SEARCH and since:
        return FOUND
    if not since:
        return "ok"
    if asked == WORD:
        name = next((name for name in tools if name.endswith("__lookup")), None)
        told = re.search(r"The word is (\w+)", since)
        if told is None and name is not None and num_done == 0:
            return _call(name, day="today")
        return f"It is {told[1]}." if told is not None else "There is no such tool."
    if num_done == 0:
        return _shell(tools, "echo one > a.txt; cat a.txt")
    if num_done == 1:
        if "apply_patch" in tools:
            return _call("apply_patch", input=PATCH)
        return _shell(tools, "echo 'two \"quoted\"' > b.txt")
    return _shell(tools, "cat a.txt b.txt") if num_done == 2 else DONE


def _shell(tools: Sequence[str], command: str) -> str:
    name = next(name for name in _SHELLS if name in tools)
    return _call(name, **({"cmd": command} if name == "exec_command" else {"command": command, "description": "d"}))


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _respond(prompt_token_ids: Sequence[int], _params: SamplingParams) -> Sequence[int]:
    prompt = bytes(token_id for token_id in prompt_token_ids if token_id < 256).decode(errors="replace")
    return [*answer(prompt).encode(), EOS]


def _colours(engine: FakeEngineClient) -> str:
    names = {(255, 0, 0): "red", (0, 0, 255): "blue"}
    seen = [names.get(tuple(picture.pixels[0, 0].tolist()), "another colour") for picture in engine.pictures]
    return f"I see {' and '.join(seen) or 'nothing'}."


async def _serve(port: int, *, sees: bool) -> None:
    engine = FakeEngineClient(respond=_respond, max_model_len=1_000_000)
    if sees:
        engine.respond = lambda _prompt, _params: [*_colours(engine).encode(), EOS]
    served = ServedModels(ServerSettings(host="127.0.0.1", port=port))
    runner = make_runner(build_app(served, read_keys(served.settings)))
    await runner.setup()
    await start_sites(runner, ["127.0.0.1"], port)
    engine.start(asyncio.get_running_loop())
    text_model: FakeTextModel = SeeingTextModel() if sees else FakeTextModel(TEMPLATE)
    text_model.ignores_media = True
    served.first.open(engine.client, text_model.model)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sees="sees" in sys.argv[2:]))
