"""Every test here runs once for each variant of the kernels that was built and runs on this machine."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.backends.native import library
from tests.native_variants import loaded, variants_to_test
from tests.thoroughness import IS_FULL

# Modules whose kernels know no matrix unit. The variants that differ in it alone would run the same code once more.
_WITHOUT_MATRICES = ("test_argmax", "test_bursts", "test_packer", "test_sampler")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        name = metafunc.module.__name__.rpartition(".")[2]
        variants = variants_to_test(with_tile_registers=name not in _WITHOUT_MATRICES)
        # Not of the session: the variant of the last test here would be that of all tests behind it.
        metafunc.parametrize("variant", variants, indirect=True, scope="module")


# Tests of more cases than this are divided among the variants that this machine would not choose.
_MANY_CASES = 12
_SHARE = 3  # one case in so many, other ones for each variant


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves a part of the cases to a full run.

    Every case runs with the variant that this machine chooses. The others share most of their code with it, and with
    one another: there each case runs with some of them.
    """
    if IS_FULL or library.VARIANT_VARIABLE in os.environ:
        return
    own = next(filter(library.runs_here, library.built_variants()), None)
    cases: dict[tuple[object, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if (
            item.path.parent == Path(__file__).parent
            and isinstance(item, pytest.Function)
            and hasattr(item, "callspec")
        ):
            name = item.callspec.params.get("variant", own)
            if name in library.VARIANTS and name != own:
                cases[item.function, name].append(item)
    left = {
        item
        for (_, name), of_variant in cases.items()
        if len(of_variant) > _MANY_CASES
        for i, item in enumerate(of_variant)
        if (i + list(library.VARIANTS).index(name)) % _SHARE
    }
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=list(left))


@pytest.fixture(scope="module")
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """The variant that the kernels of this test are of."""
    with loaded(request.param):
        yield request.param
