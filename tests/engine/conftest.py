"""What tests of the engine share."""

from __future__ import annotations

import pytest

from engine.kernels.native import library


@pytest.fixture
def native() -> str:
    """The variant of the native kernels; without them a test that asks for it is skipped."""
    try:
        return library.load()
    except library.NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=["xla", "native"])
def is_native(request: pytest.FixtureRequest) -> bool:
    """Runs a test through XLA and through native kernels."""
    if request.param == "native":
        request.getfixturevalue("native")
    return request.param == "native"
