"""Attacks by uploads and batches: huge, malformed and endless files, and batches that are cancelled or lose theirs."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import orjson

from benchmarks.chaos.target import Target

_FILES, _BATCHES, _URL = "/v1/files", "/v1/batches", "/v1/completions"
_POLL_S = 0.1
_ENDED = ("completed", "failed", "expired", "cancelled")


async def batch_files(target: Target) -> None:
    """Files that are no batches: random bytes, no form, a line without end, deep JSON, many lines, a cut upload."""
    attack, draw = "batch files", target.draw
    match draw.randint(0, 3):
        case 0:
            body = draw.randbytes(draw.randint(0, 100_000))
            headers = {"Content-Type": draw.choice(["multipart/form-data; boundary=x", "text/plain", ""])}
            await target.ask(attack, "POST", _FILES, (400, 413, 415, 429), data=body, headers=headers)
        case 1:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(draw.random()):
                    await _upload(target, attack, bytes(draw.randint(1, 20_000_000)))
        case _:
            lines = draw.choice([
                b"[" * 3_000_000, b"\n" * 3_000_000, b"{}\n" * 100_000, _line(0) * 1000, draw.randbytes(10_000),
                _line(0) + b'{"custom_id": "\xff"}', b'{"body": ' + b"[[]," * 500_000,
            ])  # fmt: skip
            file_id = await _upload(target, attack, lines)
            if file_id is not None:
                batch_id = await _create(target, attack, file_id)
                if batch_id is not None:
                    await _wait(target, attack, batch_id)
                await target.ask(attack, "DELETE", f"{_FILES}/{file_id}", (200,))


async def batches(target: Target) -> None:
    """A batch whose file is deleted, or which is cancelled; what it has answered is read and deleted."""
    attack, draw = "batches", target.draw
    file_id = await _upload(target, attack, b"".join(_line(at) for at in range(draw.randint(1, 12))))
    batch_id = None if file_id is None else await _create(target, attack, file_id)
    if draw.random() < 0.7 and file_id is not None:
        await target.ask(attack, "DELETE", f"{_FILES}/{file_id}", (200,))
        file_id = None
    if batch_id is None:
        return
    if draw.random() < 0.5:
        await asyncio.sleep(3 * draw.random())
        await target.ask(attack, "POST", f"{_BATCHES}/{batch_id}/cancel", (200, 409))
    ended = await _wait(target, attack, batch_id)
    if ended is None:
        return
    counts = ended["request_counts"]
    if ended["status"] != "failed" and counts["total"] != counts["completed"] + counts["failed"]:
        target.ledger.fail(f"a batch has {counts} when it has ended")
    for name in (ended["output_file_id"], ended["error_file_id"], file_id):
        if name is not None:
            await target.ask(attack, "GET", f"{_FILES}/{name}/content", (200,))
            await target.ask(attack, "DELETE", f"{_FILES}/{name}", (200,))


def _line(number: int) -> bytes:
    body = {"prompt": "the tide " * (number + 1), "max_tokens": 1 + number}
    return orjson.dumps({"custom_id": str(number), "method": "POST", "url": _URL, "body": body}) + b"\n"


async def _upload(target: Target, attack: str, content: bytes) -> str | None:
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", content, filename="attack.jsonl")
    status, created = await target.ask(attack, "POST", _FILES, (200, 413, 429), data=form)
    return str(orjson.loads(created)["id"]) if status == 200 else None


async def _create(target: Target, attack: str, file_id: str) -> str | None:
    body = {"input_file_id": file_id, "endpoint": _URL, "completion_window": "24h"}
    status, created = await target.ask(attack, "POST", _BATCHES, (200, 429), json=body)
    return str(orjson.loads(created)["id"]) if status == 200 else None


async def _wait(target: Target, attack: str, batch_id: str) -> dict[str, Any] | None:
    """Waits until the batch has ended; other attacks wait for it, so it is cancelled after a while.

    None where the server does not tell, which the ledger has noted as a failure.
    """
    polls = 0
    while True:
        status, told = await target.ask(attack, "GET", f"{_BATCHES}/{batch_id}", (200,))
        if status != 200:
            return None
        batch = orjson.loads(told)
        if batch["status"] in _ENDED:
            return dict(batch)
        polls += 1
        if polls == 100:
            await target.ask(attack, "POST", f"{_BATCHES}/{batch_id}/cancel", (200, 409))
        await asyncio.sleep(_POLL_S)
