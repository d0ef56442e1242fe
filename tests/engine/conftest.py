"""Fixtures that the tests of the engine share."""

from __future__ import annotations

import pytest

from engine.kernels.native import library


@pytest.fixture
def native() -> str:
    """The variant of the native kernels; a test that uses it is skipped if there are none."""
    try:
        return library.load()
    except library.NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=["xla", "native"])
def is_native(request: pytest.FixtureRequest) -> bool:
    """Runs a test once through XLA and once through native kernels."""
    if request.param == "native":
        request.getfixturevalue("native")
    return request.param == "native"
