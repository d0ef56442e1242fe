"""A server that answers what the `huggingface_hub` library asks of the Hub."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

FOLDER = {
    "README.md": b"# A model",
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": b"weights" * 50_000,
    "pytorch_model.bin": b"no weights that are read",
    "onnx/model.onnx": b"nor these",
}
QUANTS = {f"tiny-{quant}.gguf": b"GGUF " + quant.encode() * 10 for quant in ("Q4_K_M", "Q8_0", "UD-Q4_K_M")}
SHARDS = {f"F16/tiny-F16-0000{number}-of-00002.gguf": b"GGUF of shard %d" % number for number in (1, 2)}


@dataclass
class Repository:
    """The files of each revision."""

    revisions: dict[str, dict[str, bytes]]
    token: str | None = None  # needed to read the files
    is_gated: bool = False  # and so the token is asked for by another error

    def commit(self, revision: str) -> str:
        content = repr(sorted((name, hash(data)) for name, data in self.revisions[revision].items()))
        return hashlib.sha1(content.encode()).hexdigest()

    def find(self, revision: str) -> str | None:
        """The name of a revision, given that or its commit."""
        return next((name for name in self.revisions if revision in (name, self.commit(name))), None)


@dataclass
class FakeHub:
    repositories: dict[str, Repository] = field(default_factory=dict)
    url: str = ""
    downloads: list[str] = field(default_factory=list)  # file names, in the order in which they were sent
    asked: int = 0  # requests of any kind
    cut_after: int | None = None  # bytes of the next file after which the connection breaks
    refusal: int | None = None  # a status that every request gets
    gone: set[str] = field(default_factory=set)  # files that are listed but cannot be had

    def add(self, name: str, files: dict[str, bytes], **options: str | bool | None) -> Repository:
        self.repositories[name] = Repository({"main": files}, **options)  # type: ignore[arg-type]
        return self.repositories[name]

    def answer(self, method: str, url: str, headers: Message) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        self.asked += 1
        if self.refusal is not None:
            return _refusal(self.refusal, "")
        parts = [unquote(part) for part in urlsplit(url).path.strip("/").split("/")]
        wants_list = parts[:2] == ["api", "models"]
        owner, name, *rest = parts[2:] if wants_list else parts
        repository = self.repositories.get(f"{owner}/{name}")
        if repository is None:
            return _refusal(401, "RepoNotFound")
        may_read = repository.token is None or headers["Authorization"] == f"Bearer {repository.token}"
        if not may_read and not (wants_list and repository.is_gated):  # what a gated one holds, everybody may see
            return _refusal(401, "GatedRepo" if repository.is_gated else "RepoNotFound")
        asked = rest[1] if len(rest) > 1 else "main"
        revision = repository.find(asked)
        if revision is None:
            return _refusal(404, "RevisionNotFound")
        files, commit = repository.revisions[revision], repository.commit(revision)
        if wants_list:
            siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
            body = {"_id": "0", "id": f"{owner}/{name}", "sha": commit, "siblings": siblings}
            return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()
        path = "/".join(rest[2:])
        if path not in files or path in self.gone:
            return _refusal(404, "EntryNotFound")
        data = files[path]
        found = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        if method == "GET":
            self.downloads.append(path)
        if headers["Range"]:
            start = int(headers["Range"].removeprefix("bytes=").split("-")[0])
            return 206, found | {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, data[start:]
        return 200, found, data


def _refusal(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": HTTPStatus(status).phrase}, b""


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # and HEAD
            status, headers, body = hub.answer(self.command, self.path, self.headers)
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                if hub.cut_after is not None and "X-Repo-Commit" in headers:
                    body, hub.cut_after, self.close_connection = body[: hub.cut_after], None, True
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - the base class asks for this name

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True  # a kept-alive connection ends with the client, which keeps it until its own end
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()
        thread.join()
