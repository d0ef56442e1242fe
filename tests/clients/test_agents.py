"""Agents as they are published, on a server whose model follows a script."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.support.scripted_process import ROOT, scripted_process

PACKAGES = Path(os.environ.get("EAGRE_NODE_MODULES", ROOT / "build" / "clients-javascript")) / "node_modules"
CODEX, CLAUDE = PACKAGES / ".bin" / "codex", PACKAGES / ".bin" / "claude"
QWEN = PACKAGES / ".bin" / "qwen"
LIMIT_S = 180
MCP_SERVER = Path(__file__).parent / "support" / "mcp_server.py"
# As tests.clients.support.scripted_server has them, which needs packages that are not installed beside the clients.
TASK, PICTURE, SEARCH, WORD = "DO-THE-TASK", "LOOK-AT-IT", "SEARCH-FOR-IT", "SAY-THE-WORD"
DONE, SEEN, FOUND = "The task is done.", "There was a picture that I cannot see.", "The search has ended."

Run = Callable[..., str]


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    """The address of a server whose model follows the script."""
    with scripted_process() as url:
        yield url


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A red square as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + b"\xff\0\0" * 32 for _ in range(32))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0))
    path = tmp_path / "red.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))
    return path


@pytest.fixture
def codex(scripted: str, tmp_path: Path) -> Run:
    """Runs `codex exec` in an empty folder, and returns all that it has written."""
    if not CODEX.exists():
        pytest.skip("codex is not installed")
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    with urllib.request.urlopen(scripted + "/v1/models?client_version=0.171.0", timeout=5) as answer:
        (tmp_path / "models.json").write_bytes(answer.read())
    (home / "config.toml").write_text(
        'model = "fake"\nmodel_provider = "eagre"\n[model_providers.eagre]\nname = "eagre"\n'
        f'base_url = "{scripted}/v1"\nwire_api = "responses"\n'
        f'[mcp_servers.words]\ncommand = "{sys.executable}"\nargs = ["{MCP_SERVER}"]\n'
    )

    def run(*arguments: str | Path, with_catalogue: bool = False, over_socket: bool = False) -> str:
        options = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        if with_catalogue:
            options += ["-c", f'model_catalog_json="{tmp_path / "models.json"}"']
        if over_socket:
            options += ["-c", "model_providers.eagre.supports_websockets=true"]
        done = subprocess.run(
            [CODEX, "exec", *arguments, *options], cwd=folder, env={**os.environ, "CODEX_HOME": str(home)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        told = done.stdout + done.stderr
        assert done.returncode == 0, told
        assert "ERROR" not in told, told
        return told

    return run


@pytest.mark.parametrize("with_catalogue", [False, True])
@pytest.mark.parametrize("over_socket", [False, True])
def test_codex_does_a_task_of_three_calls_and_resumes(
    codex: Run, tmp_path: Path, with_catalogue: bool, over_socket: bool
) -> None:
    told = codex(TASK, with_catalogue=with_catalogue, over_socket=over_socket)
    assert DONE in told
    assert ("metadata for `fake` not found" in told) is not with_catalogue
    assert (tmp_path / "work" / "a.txt").read_text() == "one\n"
    assert (tmp_path / "work" / "b.txt").read_text() == 'two "quoted"\n'
    again = codex("resume", "--last", "Thank you.", with_catalogue=with_catalogue, over_socket=over_socket)
    assert DONE in again


def test_codex_calls_the_tool_of_an_mcp_server(codex: Run) -> None:
    assert "It is heron." in codex(WORD)
    assert "It is heron." in codex(WORD, with_catalogue=True, over_socket=True)


def test_codex_takes_a_picture_and_goes_on(codex: Run, picture: Path) -> None:
    assert SEEN in codex(PICTURE, "-i", picture)
    assert DONE in codex("resume", "--last", TASK)


@pytest.fixture
def claude(scripted: str, tmp_path: Path) -> Run:
    """Runs `claude -p` in an empty folder, and returns all that it has written."""
    if not CLAUDE.exists():
        pytest.skip("claude is not installed")
    subprocess.run(["node", "install.cjs"], cwd=PACKAGES / "@anthropic-ai" / "claude-code", check=True)
    folder = tmp_path / "work"
    folder.mkdir()
    env = {
        **os.environ,
        "HOME": str(tmp_path),
        "CLAUDE_CONFIG_DIR": str(tmp_path / "home"),
        "ANTHROPIC_BASE_URL": scripted,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "fake",
        "ANTHROPIC_SMALL_FAST_MODEL": "fake",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }

    def run(prompt: str, *options: str, tool_search: bool = False) -> str:
        done = subprocess.run(
            [CLAUDE, "-p", prompt, "--dangerously-skip-permissions", *options],
            cwd=folder, env={**env, "ENABLE_TOOL_SEARCH": str(tool_search).lower()}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        told = done.stdout + done.stderr
        assert done.returncode == 0, told
        return told

    return run


@pytest.mark.parametrize("tool_search", [False, True])
def test_claude_code_does_a_task_and_continues(claude: Run, tmp_path: Path, tool_search: bool) -> None:
    assert DONE in claude(TASK, tool_search=tool_search)
    assert (tmp_path / "work" / "b.txt").read_text() == 'two "quoted"\n'
    assert DONE in claude("Thank you.", "--continue", tool_search=tool_search)


def test_claude_code_reads_a_picture_and_searches_the_web(claude: Run, picture: Path) -> None:
    assert SEEN in claude(f"{PICTURE} PATH={picture}")
    assert FOUND in claude(SEARCH, "--continue")


def run_in(folder: Path, *command: str | Path, **variables: str) -> str:
    """What a command has written, in `folder` with a home beside it; it must succeed."""
    folder.mkdir(exist_ok=True)
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "HOME": str(home), **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    return told


def test_qwen_code_does_a_task_of_three_calls(scripted: str, tmp_path: Path) -> None:
    if not QWEN.exists():
        pytest.skip("qwen is not installed")
    folder = tmp_path / "work"
    variables = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": scripted + "/v1", "OPENAI_MODEL": "fake"}
    assert DONE in run_in(folder, QWEN, "--auth-type", "openai", "--yolo", "-p", TASK, **variables)
    assert (folder / "a.txt").read_text() == "one\n"
    assert (folder / "b.txt").read_text() == 'two "quoted"\n'
