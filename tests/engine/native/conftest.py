"""Every test here runs once for each variant of the kernels that was built and runs on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from engine.native import library


def variants_to_test() -> list[object]:
    chosen = os.environ.get(library.VARIANT_VARIABLE)
    variants = [name for name in library.built_variants() if library.runs_here(name) and chosen in (None, name)]
    # With a compiler at hand, kernels that are not there are a defect of the build, and the tests fail.
    could_build = any(map(shutil.which, ("c++", "g++", "clang++")))
    missing = pytest.mark.skip("there is no compiler, and so there are no native kernels to test")
    return variants or [pytest.param("none", marks=() if could_build and chosen is None else missing)]


@pytest.fixture(scope="session", params=variants_to_test())
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """The variant that the kernels of this test are of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.VARIANT_VARIABLE, request.param)
        library.load.cache_clear()
        assert library.load() == request.param
        yield request.param
        library.load.cache_clear()
