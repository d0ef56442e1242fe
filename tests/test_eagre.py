"""The public face: what it offers, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import eagre
from tests.patience import PROCESS_S

ROOT = Path(__file__).parent.parent
TREE = ast.parse((ROOT / "eagre.py").read_text(encoding="utf-8"))
# From name to module, of all imports from our packages: those at the top and those for type checkers.
IMPORTS = {
    alias.name: node.module
    for node in ast.walk(TREE)
    if isinstance(node, ast.ImportFrom) and node.col_offset in (0, 4) and node.module
    for alias in node.names
    if node.module.split(".")[0] in ("server", "engine", "sampling")
}


@pytest.mark.parametrize("name", sorted(set(eagre.__all__) - {"__version__"}))
def test_a_name_is_the_one_that_type_checkers_see(name: str) -> None:
    assert getattr(eagre, name) is getattr(import_module(IMPORTS[name]), name)


def test_every_name_can_be_imported_and_no_other() -> None:
    assert set(eagre.__all__) == IMPORTS.keys() - {"eagre_version"} | {"__version__"}
    assert dir(eagre) == sorted(eagre.__all__)
    with pytest.raises(AttributeError, match="module 'eagre' has no attribute 'Llm'"):
        eagre.Llm  # noqa: B018
    assert eagre.__version__ == eagre.__version__ != ""


def test_importing_it_imports_nothing_heavy_and_parameters_need_no_more() -> None:
    script = (
        "import sys\n"
        "from eagre import EngineConfig, InvalidParameter, SamplingParams\n"
        "SamplingParams(max_tokens=3), EngineConfig()\n"
        "assert not {'jax', 'numpy', 'aiohttp', 'pydantic'} & set(sys.modules), sorted(sys.modules)\n"
        "from eagre import LLM\n"
        "assert 'server.offline.llm' in sys.modules and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PROCESS_S)


@pytest.mark.parametrize(
    ("keywords", "error", "words"),
    [
        ({"max_seqs": 4}, TypeError, "no setting 'max_seqs'; it has dtype, .*max_num_seqs"),
        ({"decode_chunk": 0}, ValueError, "decode_chunk is 0; it must be at least 1"),
        ({"max_num_seqs": "4"}, ValueError, "max_num_seqs is '4'; it must be an integer"),
    ],
)
def test_keywords_are_checked_before_the_model_is_looked_for(
    keywords: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        eagre.LLM("there-is-no-such-model", progress=False, **keywords)
