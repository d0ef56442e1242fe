"""Links, anchors and paths in the documents lead somewhere, and the documents that should be short are."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import ROUNDS
from benchmarks.chaos.attackers import ATTACKS, STOPPING

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "docker/*.md", "benchmarks/**/*.md", ".github/*.md")
    for path in ROOT.glob(pattern)
)
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
MOST_LINES = {"README.md": 150, "docs/performance.md": 300}
# These name files as they were at their time.
OF_THE_PAST = ("CHANGELOG.md", "docs/measurements/")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)", re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)
FENCE = re.compile(r"^ *```.*?^ *```\s*$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
PART = re.compile(r"[\w./-]*\w\.(?:py|cc|h|js|mjs|toml|sh|yml|yaml|service)")
MODULE = re.compile(r"python -m\s+((?:benchmarks|server|engine|tests)[\w.]*\w)")
ROOMS = ("server", "engine", "cache", "sampling", "static", "tests", "benchmarks", "docs", "docker", ".github", ".ci")
FILE = re.compile(rf"(?:{'|'.join(map(re.escape, ROOMS))})/[\w./-]*[\w/]")


@cache
def prose(name: str) -> str:
    return FENCE.sub("", (ROOT / name).read_text("utf-8"))


@cache
def anchors(name: str) -> frozenset[str]:
    """The ids that a page shows for its headings, as GitHub makes them."""
    found: Counter[str] = Counter()
    ids = set()
    for heading in HEADING.findall(prose(name)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        ids.add(slug if found[slug] == 0 else f"{slug}-{found[slug]}")
        found[slug] += 1
    return frozenset(ids)


@cache
def tracked() -> frozenset[str]:
    """All files of the tree that git knows or would take, and their folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    files = [Path(name) for name in listed.stdout.splitlines()]
    if listed.returncode:  # not a checkout
        files = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
    return frozenset({path.as_posix() for path in files} | {part.as_posix() for path in files for part in path.parents})


def broken_links(name: str) -> Iterator[str]:
    for target in LINK.findall(prose(name)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        page = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else ""
        if page not in tracked() or (anchor and page.endswith(".md") and anchor not in anchors(page)):
            yield target


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_anchors_lead_somewhere(name: str) -> None:
    assert list(broken_links(name)) == []


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if not name.startswith(OF_THE_PAST)])
def test_files_that_are_named_exist(name: str) -> None:
    named = {code for code in CODE.findall(prose(name)) if FILE.fullmatch(code)}
    assert {code for code in named if code.rstrip("/") not in tracked()} == set()
    parts = {code for code in CODE.findall(prose(name)) if PART.fullmatch(code)}  # a name alone, or the end of a path
    assert {code for code in parts if not any(f"/{path}".endswith(f"/{code}") for path in tracked())} == set()


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if not name.startswith(OF_THE_PAST)])
def test_modules_that_are_run_exist(name: str) -> None:
    for module in MODULE.findall((ROOT / name).read_text("utf-8")):
        path = module.replace(".", "/")
        assert {f"{path}.py", f"{path}/__main__.py"} & tracked(), module


@pytest.mark.parametrize(("name", "most"), MOST_LINES.items())
def test_what_should_be_short_is_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text("utf-8").splitlines()) <= most


def test_code_links_to_anchors_that_exist() -> None:
    """Comments, help texts and error messages name pages too."""
    linked = re.compile(r"\b((?:docs/)?\w+\.md)#([\w-]+)")
    missing = []
    for name in sorted(tracked()):
        if name.endswith((".py", ".h", ".cc", ".js", ".sh")) and not name.startswith("tests/"):
            for page, anchor in linked.findall((ROOT / name).read_text("utf-8")):
                if page in DOCUMENTS and anchor not in anchors(page):
                    missing.append(f"{name}: {page}#{anchor}")
    assert missing == []


@pytest.mark.parametrize("room", [room for room in PACKAGES if "." in room])
def test_the_architecture_names_every_room(room: str) -> None:
    """By its path, or by its last name in the row of the room that it is in."""
    rows = [line for line in (ROOT / "docs/architecture.md").read_text("utf-8").splitlines() if line.startswith("| `")]
    parent, _, name = room.rpartition(".")
    path, above = room.replace(".", "/"), parent.replace(".", "/")
    assert any(
        row.startswith(f"| `{path}` |") or (row.startswith(f"| `{above}` |") and f"`{name}`" in row) for row in rows
    )


def test_an_anchor_is_that_of_a_page_on_github() -> None:
    assert {"eagres-router", "what-a-router-costs"} <= anchors("docs/scale.md")
    assert "anthropics-messages" in anchors("docs/protocol.md")


def test_the_attacks_that_security_names_exist() -> None:
    table = prose("docs/security.md").partition("## What is defended")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[-1] for line in table.splitlines() if line.startswith("| ")][1:]
    assert all(CODE.findall(row) for row in rows), "a defence without an attack or a test"
    named = {code for row in rows for code in CODE.findall(row) if "/" not in code}
    assert named <= {*ATTACKS, *STOPPING, *ROUNDS}
