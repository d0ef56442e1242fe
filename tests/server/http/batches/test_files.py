"""Files by the official client library, their limits, and files of other keys."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from server.http.batches import upload
from server.http.batches.upload import Upload
from server.storage.database import StoreError
from server.storage.file_table import FilesFull
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.http.batches.conftest import client_of

KEYS = ("key-of-ann ann", "key-of-ben ben")


async def add(client: AsyncOpenAI, content: bytes = b"{}\n", name: str = "in.jsonl", **more: Any) -> Any:
    return await client.files.create(file=(name, content), **{"purpose": "batch", **more})


async def test_a_file_comes_back_byte_for_byte(client: AsyncOpenAI) -> None:
    for size in (0, 1, upload.PIECE_BYTES, 5 * upload.PIECE_BYTES + 7):
        content = random.Random(size).randbytes(size)
        file = await add(client, content, expires_after={"anchor": "created_at", "seconds": 3600})
        assert (file.object, file.bytes, file.filename, file.purpose) == ("file", size, "in.jsonl", "batch")
        assert file.expires_at == file.created_at + 3600
        assert (await client.files.content(file.id)).content == content
        assert (await client.files.retrieve(file.id)) == file


async def test_files_are_listed_and_deleted(client: AsyncOpenAI) -> None:
    names = [f"{at}.jsonl" for at in range(5)]
    files = [await add(client, name=name) for name in names]
    assert [file.filename async for file in client.files.list(limit=2)] == names[::-1]
    assert [file.filename async for file in client.files.list(limit=2, order="asc", purpose="batch")] == names
    assert [file.filename async for file in client.files.list(purpose="batch_output")] == []
    assert (await client.files.delete(files[0].id)).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await call(files[0].id)
    assert [file.filename async for file in client.files.list(order="asc")] == names[1:]


@pytest.mark.parametrize(
    ("form", "param", "words"),
    [
        ({"file": b"x"}, "purpose", "purpose is required"),
        ({"file": b"x", "purpose": "assistants"}, "purpose", "takes files for batches alone"),
        ({"purpose": "batch"}, "file", "file is required"),
        ({"purpose": "batch", "file": b"x", "expires_after[anchor]": "now"}, "expires_after.anchor", "created_at"),
        (
            {"purpose": "batch", "file": b"x", "expires_after[anchor]": "created_at", "expires_after[seconds]": "9"},
            "expires_after.seconds", "from 3600 to 2592000",
        ),
        ({"purpose": "batch", "file": b"x" * 70_000}, "file", "larger than 65536 bytes"),
    ],
)  # fmt: skip
async def test_what_is_refused_leaves_nothing(
    start_server: StartServer, form: dict[str, Any], param: str, words: str
) -> None:
    server = await start_server(FakeEngineClient(), max_file_bytes=65536)
    data = aiohttp.FormData(default_to_multipart=True)
    for name, value in form.items():
        data.add_field(name, value, filename="a" if name == "file" else None)
    async with server.http.post(server.url + "/v1/files", data=data) as response:
        answer = await response.json()
    assert response.status == (413 if "larger" in words else 400)
    assert answer["error"]["param"] == param
    assert words in answer["error"]["message"]
    assert (await server.get("/v1/files"))[1]["data"] == []
    assert await server.served.store.run_read(lambda tables: tables.files.num_bytes.total) == 0


async def test_a_body_that_is_no_form(server: RunningServer) -> None:
    status, answer = await server.post("/v1/files", {"purpose": "batch"})
    assert (status, answer["error"]["code"]) == (415, "unsupported_content_type")
    form = b'--X\r\nContent-Disposition: form-data; name="file"; filename="a\x07b"\r\n\r\n\r\n--X--'
    headers = {"Content-Type": "multipart/form-data; boundary=X"}
    async with server.http.post(server.url + "/v1/files", data=form, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["param"]) == (400, "file")
    headers["Content-Encoding"] = "gzip"
    async with server.http.post(server.url + "/v1/files", data=form, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=file-1", "purpose=vision"])
async def test_bad_queries(server: RunningServer, query: str) -> None:
    status, answer = await server.get(f"/v1/files?{query}")
    assert (status, answer["error"]["param"]) == (400, query.partition("=")[0])


async def test_a_file_of_another_key_is_not_there(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(), api_keys=KEYS)
    async with client_of(server, "key-of-ann") as ann, client_of(server, "key-of-ben") as ben:
        file = await add(ann)
        for call in (ben.files.retrieve, ben.files.content, ben.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(file.id)
        with pytest.raises(openai.NotFoundError):
            await ben.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        assert [found.id async for found in ben.files.list()] == []
        assert (await ann.files.retrieve(file.id)).id == file.id


async def test_room_for_files_is_shared_by_keys(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(), api_keys=KEYS, store_file_bytes=400_000)
    async with client_of(server, "key-of-ann") as ann, client_of(server, "key-of-ben") as ben:
        first = await add(ann, bytes(150_000))
        with pytest.raises(openai.APIStatusError, match="half of what others leave") as full:
            await add(ann, bytes(100_000))
        assert (full.value.status_code, full.value.code) == (413, "files_full")
        await add(ben, bytes(100_000))
        await ann.files.delete(first.id)
        await add(ann, bytes(140_000))


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(server: RunningServer) -> None:
    begun = asyncio.Event()

    async def body() -> Any:
        yield b"--X\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n" + bytes(200_000)
        begun.set()
        await asyncio.Event().wait()

    headers = {"Content-Type": "multipart/form-data; boundary=X"}
    sending = asyncio.ensure_future(server.http.post(server.url + "/v1/files", data=body(), headers=headers))
    await begun.wait()
    held = server.served.store.run_read
    async with asyncio.timeout(PATIENCE_S):
        while await held(lambda tables: tables.files.num_bytes.total) < upload.PIECE_BYTES:
            await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    async with asyncio.timeout(PATIENCE_S):
        while await held(lambda tables: tables.files.num_bytes.total):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [FilesFull(1, 2, 3), StoreError("the disk is full")], ids=["full", "broken"])
async def test_a_client_that_leaves_before_its_upload_is_refused_is_no_failure(error: Exception) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    class Refusing:
        async def run(self, _work: object) -> int:
            has_begun.set()
            await may_end.wait()
            raise error

    async def begin() -> None:
        async with Upload(Refusing(), "me", 100):  # type: ignore[arg-type]
            raise AssertionError("it has begun")

    leaving = asyncio.create_task(begin())
    await has_begun.wait()
    leaving.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_an_upload_that_is_too_slow_ends(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(), body_timeout=0.2)

    async def body() -> Any:
        yield b"--X\r\n"
        await asyncio.Event().wait()

    headers = {"Content-Type": "multipart/form-data; boundary=X"}
    async with server.http.post(server.url + "/v1/files", data=body(), headers=headers) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (408, "body_timeout")


async def test_files_survive_a_restart(start_server: StartServer, tmp_path: Any) -> None:
    store = str(tmp_path / "store.db")
    server = await start_server(FakeEngineClient(), store=store)
    async with client_of(server) as client:
        file = await add(client, b"kept")
    await server.runner.cleanup()
    again = await start_server(FakeEngineClient(), store=store)
    async with client_of(again) as client:
        assert (await client.files.content(file.id)).content == b"kept"


async def test_a_file_that_is_deleted_while_it_is_read_ends_early(
    server: RunningServer, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await add(client, bytes(8 << 20))
    async with server.http.get(f"{server.url}/v1/files/{file.id}/content") as response:
        assert response.content_length == 8 << 20
        await response.content.readany()
        await client.files.delete(file.id)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    await eventually(lambda: True)
