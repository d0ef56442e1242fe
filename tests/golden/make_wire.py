"""Makes wire/recording.jsonl: requests of every kind, and what the server answers to them byte for byte.

    python -m tests.golden.make_wire

The file states what clients may rely on, so it is made anew only where an answer is meant to change, and then the
difference is read line by line. `wire/player.py` tells what a case may hold and what is noted of an answer; the engine
is the fake of `tests/fakes`, so any machine makes the same file.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import structlog

from tests.golden.wire.cases import make_cases
from tests.golden.wire.player import play
from tests.server.conftest import server_starter

OUTPUT = Path(__file__).parent / "wire" / "recording.jsonl"


async def record() -> None:
    """Plays every case and writes it with its answers."""
    lines = []
    for case in make_cases():
        async with server_starter() as start_server:
            try:
                answers = await play(case, start_server)
            except BaseException as error:
                error.add_note(f"in the case {case['name']}")
                raise
        lines.append(json.dumps({**case, "answers": answers}, ensure_ascii=False, separators=(",", ":")))
    OUTPUT.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(lines)} cases, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # no events on the terminal
    asyncio.run(record())
