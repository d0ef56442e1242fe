"""The attack that sends random bytes: HTTP requests and WebSocket frames, most of them broken."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import struct

from benchmarks.chaos.attacks.fuzz_cases import FuzzCase
from benchmarks.chaos.target import Target

_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3}) ", re.MULTILINE)
# 501 and 505 say that a method or a version is unknown, 503 that there are too many connections.
_GOOD_ERRORS = frozenset({501, 503, 505})
_READ_S = 1.0  # for an answer
_CONNECTION_S = 20.0  # for a whole case; the server's own deadlines are below it
_MAX_ANSWER_BYTES = 1 << 20
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


async def fuzz(target: Target) -> None:
    """One connection that sends random bytes. A failure names the number that makes the same bytes again."""
    number = target.draw.getrandbits(48)
    case = FuzzCase.draw(random.Random(number))
    answer = bytearray()
    try:
        async with asyncio.timeout(_CONNECTION_S):
            reader, writer = await target.connect()
            try:
                await _send(case, reader, writer, answer)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError:
        target.ledger.note("fuzz", "no end")
        return
    except OSError as error:
        target.ledger.note("fuzz", type(error).__name__)
    statuses = [int(status) for status in _STATUS.findall(answer)]
    for status in statuses:
        target.ledger.note("fuzz", str(status))
        if status >= 500 and status not in _GOOD_ERRORS:
            target.ledger.fail(f"fuzz: FuzzCase.draw(random.Random({number})) was answered with status {status}")
    if not statuses:
        target.ledger.note("fuzz", "no answer")
    if b"Traceback (most recent" in answer:
        target.ledger.fail(f"fuzz: FuzzCase.draw(random.Random({number})) was answered with a traceback")


async def _send(case: FuzzCase, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytearray) -> None:
    reading = asyncio.create_task(_read(reader, answer))
    try:
        for piece, pause in zip(case.pieces, case.pauses, strict=True):
            writer.write(piece)
            await asyncio.wait_for(writer.drain(), _READ_S)
            if pause:
                await asyncio.sleep(pause)
        if case.ending == "half-close":
            writer.write_eof()
        elif case.ending == "reset":
            writer.get_extra_info("socket").setsockopt(1, 13, _RESET)  # SOL_SOCKET, SO_LINGER
            return
        await asyncio.wait({reading}, timeout=_READ_S if case.ending != "stall" else 4 * _READ_S)
    except TimeoutError:
        pass  # the server does not read on, and has answered
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await reading


async def _read(reader: asyncio.StreamReader, answer: bytearray) -> None:
    while len(answer) < _MAX_ANSWER_BYTES and (data := await reader.read(65536)):
        answer += data
