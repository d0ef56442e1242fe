"""What tests of the sampler share."""

from __future__ import annotations

import pytest

from engine.native import library
from engine.native.sampler import NATIVE
from sampling.sampler import PORTABLE, SamplerBody


@pytest.fixture(scope="session", params=["portable", "native"])
def body(request: pytest.FixtureRequest) -> SamplerBody:
    """Each of the bodies; native kernels are left out where they cannot be had."""
    if request.param == "portable":
        return PORTABLE
    try:
        library.load()
    except library.NativeUnavailable as error:
        pytest.skip(str(error))
    return NATIVE
