"""What the page has of npm: pinned, and fetched from the registry that npm would ask."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from static.packages import fetch

FOLDER = Path(fetch.__file__).parent


def archive(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as members:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    return made.getvalue()


KATEX = archive(
    {
        "package/LICENSE": b"MIT",
        "package/dist/katex.min.js": b"katex",
        "package/dist/fonts/A.woff2": b"font",
        "package/dist/../../../evil.js": b"evil",
        "package/src/katex.js": b"source",
    }
)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A registry with one package on this machine, and no npm; gives what was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = self.path == "/npm/katex/-/katex-1.2.3.tgz"
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(KATEX if found else b"")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", f"http://127.0.0.1:{server.server_port}/npm")
    monkeypatch.setattr(fetch.shutil, "which", lambda _: None)
    yield asked
    server.shutdown()
    server.server_close()


def pin(monkeypatch: pytest.MonkeyPatch, *packages: fetch.Package) -> None:
    monkeypatch.setattr(fetch, "pinned", lambda: list(packages))


def package(name: str = "katex", content: bytes = KATEX) -> fetch.Package:
    return fetch.Package(name, "1.2.3", "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode())


def test_the_wanted_files_of_a_package_lie_under_its_version(
    registry: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "katex@1.0.0").mkdir()
    pin(monkeypatch, package())
    assert fetch.fetch_all(tmp_path) == []
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    folder = "katex@1.2.3"
    assert found == {f"{folder}/LICENSE", f"{folder}/dist/katex.min.js", f"{folder}/dist/fonts/A.woff2"}
    assert [path.name for path in tmp_path.iterdir()] == [folder]
    assert fetch.fetch_all(tmp_path) == []
    assert len(registry) == 1  # what is there is not fetched again


def test_what_is_not_to_be_had_is_one_sentence_and_leaves_nothing(
    registry: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pin(monkeypatch, package(content=b"another"), package("pdfjs-dist"))
    failures = fetch.fetch_all(tmp_path)
    assert [failure.partition(":")[0] for failure in failures] == [
        "the page does without katex",
        "the page does without pdfjs-dist",
    ]
    assert "not the one that package-lock.json pins" in failures[0]
    assert list(tmp_path.iterdir()) == []
    assert len(registry) == 2


def test_without_a_network_the_build_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:9")
    monkeypatch.setattr(fetch.shutil, "which", lambda _: None)
    assert len(fetch.fetch_all(tmp_path)) == len(fetch.pinned())


def test_the_registry_is_npms_own(tmp_path: Path) -> None:
    assert fetch.registry({}, tmp_path) == fetch.REGISTRY
    (tmp_path / ".npmrc").write_text("fund=false\nregistry = https://mirror.example/npm\n")
    assert fetch.registry({}, tmp_path) == "https://mirror.example/npm/"
    assert fetch.registry({"npm_config_registry": "https://other.example/"}, tmp_path) == "https://other.example/"


def test_the_page_the_lock_and_the_manifest_name_the_same_versions() -> None:
    versions = {package.name: package.version for package in fetch.pinned()}
    assert json.loads((FOLDER / "package.json").read_text())["dependencies"] == versions
    module = (FOLDER.parent / "js/page/packages.js").read_text()
    assert {name.strip('"'): version for name, version in re.findall(r'([\w"-]+): "([\d.]+)"', module)} == versions
