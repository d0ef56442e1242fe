"""server -> engine -> {cache, sampling}: the direction of every dependency, read from the imports themselves.

Imports inside functions and under TYPE_CHECKING count like any other.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Which of our packages each package may import, itself aside.
MAY_IMPORT = {
    "server": {"engine", "cache", "sampling", "static"},
    "engine": {"cache", "sampling"},
    "cache": set(),
    "sampling": set(),
    "static": set(),
}
OURS = {*MAY_IMPORT, "eagre", "benchmarks", "tests"}

# The rooms from the top to the bottom: a file imports from its own room and from rooms below it.
ROOMS = (
    "server.cli", "server.cli.manage", "server.cli.chat", "server.cli.tools", "server.cli.top",
    "server.cli.batch", "server.cli.bench", "server.cli.bench.load", "server.cli.client", "server.router.ray",
    "server.router.local", "server.router", "server.router.records",
    "server.http", "server.http.batches", "server.http.pooling", "server.http.playground", "server.http.responses",
    "server.http.streams", "server.http.mcp",
    "server.http.entry", "server.api.openapi",
    "server.http.transport", "server.http.accepting", "server.offline",
    "server.api.batches", "server.api.conversations", "server.api.responses", "server.api.anthropic",
    "server.api.ollama", "server.api.llama_cpp",
    "server.api.pooling", "server.api.openai", "server.api", "server.serving",
    "server.telemetry",
    "server.startup",
    "server.model_sources",
    "server.output_parsers", "server.output_parsers.families", "server.output_parsers.reading", "server.streams",
    "server.generation", "server.structured_output", "server.structured_output.schemas",
    "server.storage",
    "server.text", "server.text.tokenization", "server.media.families", "server.media",
    "server.admission", "server.admission.limits", "server.protocol", "server",
    "engine", "engine.multihost", "engine.step", "engine.parallel", "engine.schedule", "engine.schedule.step_time",
    "engine.kv_transfer", "engine.peer_transport", "engine.kv_events", "engine.adapters",
    "engine.models", "engine.models.architectures.phi", "engine.models.architectures.mixtures",
    "engine.models.architectures.head_norms",
    "engine.models.architectures.shared_experts",
    "engine.models.architectures.seeing", "engine.models.architectures.dense", "engine.models.architectures.gpt",
    "engine.models.architectures.encoders",
    "engine.models.architectures.hybrids", "engine.models.architectures.latent", "engine.models.architectures.plamo",
    "engine.models.architectures.gemma4", "engine.models.architectures.llamas",
    "engine.models.architectures", "engine.models.parts.hybrids", "engine.models.parts.routed",
    "engine.models.parts.encoders", "engine.models.parts",
    "engine.models.encoders.qwen", "engine.models.encoders",
    "engine.backends", "engine.backends.native",
    "engine.backends.xla", "engine.backends.base",
    "engine.weights.quantised", "engine.weights.formats", "engine.weights", "engine.interface",
    "cache", "sampling", "sampling.processors", "sampling.filters", "sampling.host",
    "static", "static.packages",
)  # fmt: skip
# The package `server` itself holds nothing but the way to the command line.
UPWARDS = {("server/__main__.py", "server.cli.main.main")}

# Rooms side by side, each a body of kernels.
BACKENDS = {"engine.backends.native", "engine.backends.xla"}

MAX_FILES = 15  # in a room, its __init__.py aside

# What is on the border of the engine; the rest of it is its own affair. Both sides read model files, each its part.
ENGINE_BORDER = (
    "engine.client",
    "engine.interface",
    "engine.weights.formats.fields",
    "engine.weights.formats.gguf_file",
    "engine.weights.formats.gguf_shards",
    "engine.weights.formats.lfs_pointer",
    "engine.weights.formats.image_processor",
    "engine.weights.formats.mmproj_file",
    "engine.weights.formats.model_folder",
)

# A library and where in the four packages it may be imported: a folder ends in "/".
ONLY_IN = {
    "aiohttp": ("server/",),
    "tokenizers": ("server/text/", "server/structured_output/"),
    "sentencepiece": ("server/text/",),
    "huggingface_hub": ("server/model_sources/",),
    "jinja2": ("server/text/", "server/cli/bench/"),  # chat templates, in a sandbox; the report's own page
    "rich": ("server/cli/",),
    # Nothing that a client sends is decoded in the server's own process; the command reads its user's own files.
    "PIL": ("server/media/decode_worker.py", "server/media/tiles.py", "server/cli/chat/pictures.py"),
    "llguidance": ("server/structured_output/",),
    "json": (
        "server/",
        "engine/weights/formats/",
        "static/packages/",
    ),  # folders have JSON: configurations, headers of safetensors
    "orjson": ("server/",),
    "opentelemetry": ("server/telemetry/",),
    "sqlite3": ("server/storage/",),
    "safetensors": ("engine/weights/",),
    "ray": ("server/router/ray/",),
    "msgspec": ("engine/kv_events/",),
    "jax": ("engine/", "sampling/", "cache/storage.py"),
    "jaxlib": ("engine/", "sampling/", "cache/storage.py"),
}

# Host logic, whose tests run in microseconds: folders, and files.
HOST_LOGIC = (
    "engine/schedule/",
    "engine/kv_transfer/",
    "engine/peer_transport/",
    "cache/pool.py",
    "cache/page.py",
    "cache/page.py",
    "cache/free_queue.py",
    "cache/hashing.py",
    "sampling/host/",
)
NOT_ON_HOST = {"jax", "jaxlib", "asyncio"}


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imported_modules(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import in the file at `path` below the root.

    `from a import b` gives `a.b`, because b may be a module of its own.
    """
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=module, names=names, level=level):
                base = package[: len(package) - level + 1] if level else []
                parent = ".".join([*base, *([module] if module else [])])
                for alias in names:
                    yield node.lineno, f"{parent}.{alias.name}"
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module") | ast.Attribute(attr="import_module"), args=[first, *_]
            ):
                yield node.lineno, _module_of(first)
            case _:
                pass


def _module_of(name: ast.expr) -> str:
    """The module that a call imports, or, of f"package.{module}", its package: whatever follows the dot lies there.

    Any other name that is not written out could be anything, so it is reported as such.
    """
    match name:
        case ast.Constant(value=str(module)):
            return module
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]) if start.endswith("."):
            return start.removesuffix(".")
        case _:
            return "(a computed name)"


def room_of(module: str) -> str | None:
    """The innermost room that holds a module or a name of it; None where it is none of ours."""
    return max((room for room in ROOMS if is_within(module, room)), key=len, default=None)


def broken_rule(path: str, module: str) -> str | None:
    """Why the file at `path` may not import `module`, or None where it may."""
    package, library = path.split("/", 1)[0], module.split(".", 1)[0]
    if module == "(a computed name)":
        return "imports are written out, so that they can be checked"
    if library in OURS - {package} - MAY_IMPORT[package]:
        return f"{package} may import of ours only {sorted(MAY_IMPORT[package]) or 'itself'}"
    if package == "server" and library == "engine" and not any(is_within(module, border) for border in ENGINE_BORDER):
        return f"of engine, server knows only {', '.join(ENGINE_BORDER)}"
    room, other = path.rsplit("/", 1)[0].replace("/", "."), room_of(module)
    if other is not None and (path, module) not in UPWARDS and ROOMS.index(room) > ROOMS.index(other):
        return f"{room} stands below {other}"
    if room in BACKENDS and other in BACKENDS - {room}:
        return f"{room} and {other} are backends, which know nothing of each other"
    if path.startswith(HOST_LOGIC) and library in NOT_ON_HOST:
        return "host logic imports neither JAX nor asyncio"
    if library in ONLY_IN and not path.startswith(ONLY_IN[library]):
        return f"{library} belongs in {', '.join(ONLY_IN[library])}"
    return None


def violations(path: str, source: str) -> list[str]:
    """One sentence for each import in `source` that the file at `path` (below the root) must not have."""
    found = []
    for line, module in imported_modules(ast.parse(source, path), path):
        rule = broken_rule(path, module)
        if rule is not None:
            found.append(f"{path}:{line} imports {module}: {rule}")
    return found


def source_files() -> list[str]:
    return sorted(
        path.relative_to(ROOT).as_posix() for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")
    )


@pytest.mark.parametrize("path", source_files())
def test_imports_point_downwards(path: str) -> None:
    assert violations(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("package", ["server", "engine", "cache", "sampling"])
def test_every_package_is_looked_at(package: str) -> None:
    assert [path for path in source_files() if path.startswith(package + "/")]


@pytest.mark.parametrize("path", HOST_LOGIC)
def test_host_logic_is_in_the_tree(path: str) -> None:
    """A renamed host file must not slip out of the list unseen."""
    assert (ROOT / path).exists()


def test_every_folder_is_a_room() -> None:
    assert {path.rsplit("/", 1)[0].replace("/", ".") for path in source_files()} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for_and_is_small(room: str) -> None:
    folder = ROOT / room.replace(".", "/")
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert docstring is not None
    assert docstring.endswith(".")
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= MAX_FILES


def test_sources_of_other_languages_have_small_rooms_too() -> None:
    for pattern in ("engine/backends/native/src/**/", "static/**/", "benchmarks/**/"):
        for folder in ROOT.glob(pattern):
            if folder.name == "__pycache__" or "@" in str(folder.relative_to(ROOT)):  # or a package that was fetched
                continue
            files = [path for path in folder.iterdir() if path.is_file() and path.name != "__init__.py"]
            assert len(files) <= MAX_FILES, folder


def test_no_file_imports_itself_by_way_of_others() -> None:
    """Nor is there a circle among rooms: their order is a line. Python's own rules allow both."""
    files = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in source_files()}
    arrows: dict[str, set[str]] = {}
    for module, path in files.items():
        found = (name for _, name in imported_modules(ast.parse((ROOT / path).read_text(encoding="utf-8")), path))
        targets = {name if name in files else name.rsplit(".", 1)[0] for name in found}
        arrows[module] = (targets & files.keys()) - {module}
    TopologicalSorter(arrows).prepare()  # raises CycleError, which names the circle


def test_the_public_face_knows_the_server_and_the_borders_below() -> None:
    source = (ROOT / "eagre.py").read_text(encoding="utf-8")
    ours = [name for _, name in imported_modules(ast.parse(source), "eagre.py") if name.split(".")[0] in OURS]
    assert ours
    assert [name for name in ours if not name.startswith(("server.", "engine.interface.", "sampling.host."))] == []


def test_every_package_is_packed() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pyproject["tool"]["setuptools"]["py-modules"] == ["eagre"]
    folders = {path.rsplit("/", 1)[0].replace("/", ".") for path in source_files()} | set(MAY_IMPORT)
    assert set(pyproject["tool"]["setuptools"]["packages"]) == folders


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        ("cache/pool.py", "from engine.interface.types import TokenEvent", "cache may import of ours only itself"),
        ("cache/pool.py", "import sampling.host.params", "cache may import of ours only itself"),
        ("sampling/draw.py", "from cache import pool", "sampling may import of ours only itself"),
        ("engine/loop.py", "import server", "engine may import of ours only ['cache', 'sampling']"),
        ("engine/loop.py", "def late():\n    from server.http.app import run", "engine may import of ours only"),
        (
            "engine/loop.py",
            "import importlib\nimportlib.import_module('server.http.app')",
            "engine may import of ours only",
        ),
        ("engine/loop.py", "from importlib import import_module\nimport_module(name)", "imports are written out"),
        ("engine/loop.py", "from importlib import import_module\nimport_module(f'engine{name}')", "are written out"),
        (
            "engine/loop.py",
            "from importlib import import_module\nimport_module(f'server.http.{name}')",
            "engine may import of ours only",
        ),
        ("engine/models/architectures/llama.py", "from ....server import app", "engine may import of ours only"),
        ("engine/loop.py", "from tests.fakes.engine import Fake", "engine may import of ours only"),
        ("server/http/app.py", "import benchmarks.serving.loads", "server may import of ours only"),
        ("server/offline/llm.py", "from eagre import SamplingParams", "server may import of ours only"),
        (
            "server/http/app.py",
            "from engine.schedule.scheduler import Scheduler",
            "of engine, server knows only engine.client",
        ),
        ("server/http/app.py", "from engine import loop", "of engine, server knows only engine.client"),
        ("server/http/app.py", "import engine", "of engine, server knows only engine.client"),
        ("server/http/app.py", "from engine import client, runner", "of engine, server knows only engine.client"),
        (
            "engine/backends/native/backend.py",
            "from engine.backends.xla.products import XlaProducts",
            "are backends, which know nothing of each other",
        ),
        (
            "engine/backends/xla/backend.py",
            "from engine.backends.native import library",
            "engine.backends.xla stands below",
        ),
        ("engine/client.py", "import aiohttp.web", "aiohttp belongs in server/"),
        ("engine/weights/loader.py", "from tokenizers import Tokenizer", "tokenizers belongs in server/"),
        ("engine/weights/loader.py", "import sentencepiece", "sentencepiece belongs in server/"),
        ("engine/weights/loader.py", "import jinja2.sandbox", "jinja2 belongs in server/"),
        ("engine/loop.py", "import orjson", "orjson belongs in server/"),
        ("engine/interface/config.py", "from json import loads", "json belongs in server/"),
        ("server/http/app.py", "import jax", "jax belongs in engine/, sampling/, cache/storage.py"),
        ("cache/table.py", "import jax.numpy as jnp", "jax belongs in engine/, sampling/, cache/storage.py"),
        ("cache/pool.py", "import numpy, jaxlib", "host logic imports neither JAX nor asyncio"),
        ("sampling/host/params.py", "import jax.numpy as jnp", "host logic imports neither JAX nor asyncio"),
        (
            "engine/schedule/scheduler.py",
            "if TYPE_CHECKING:\n    import asyncio",
            "host logic imports neither JAX nor asyncio",
        ),
    ],
)
def test_a_wrong_import_is_found(path: str, source: str, rule: str) -> None:
    found = violations(path, source)
    assert len(found) == 1
    assert rule in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("server/http/app.py", "import aiohttp, json, orjson\nfrom engine.client import EngineClient"),
        (
            "server/http/app.py",
            "from engine import client, interface\nfrom sampling.host.params import SamplingParams",
        ),
        (
            "engine/models/architectures/llama.py",
            "import jax\nfrom ...interface.config import EngineConfig\nfrom cache.pool import PagePool",
        ),
        ("engine/client.py", "import asyncio"),
        (
            "engine/models/registry.py",
            "from importlib import import_module\nimport_module(f'engine.models.architectures.{module}')",
        ),
        ("cache/storage.py", "import jax.numpy as jnp\nfrom cache.pool import PagePool"),
        ("cache/pool.py", "from .page import CachePage\nfrom . import free_queue"),
    ],
)
def test_a_right_import_is_allowed(path: str, source: str) -> None:
    assert violations(path, source) == []


@pytest.mark.parametrize("room", ROOMS)
def test_the_architecture_names_every_room(room: str) -> None:
    """`a/b` stands in the list by that name, or as `b` in the line of `a`."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    outer, _, inner = room.rpartition(".")
    lines = [line for line in text.splitlines() if f"`{room.replace('.', '/')}`" in line]
    lines += [
        line for line in text.splitlines() if outer and f"`{outer.replace('.', '/')}`" in line and f"`{inner}`" in line
    ]
    assert lines or room == "server"
