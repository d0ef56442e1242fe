"""What tests of the sampler share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sampling.sampler import PORTABLE, SamplerBackend
from tests.native_variants import loaded, native_body, variants_to_test


@pytest.fixture(scope="module", params=["portable", *variants_to_test(with_tile_registers=False)])
def backend(request: pytest.FixtureRequest) -> Iterator[SamplerBackend]:
    """Each of the backends: the portable one, and the native one with every variant of the kernels."""
    if request.param == "portable":
        yield PORTABLE
    else:
        with loaded(request.param):
            yield native_body(request.param)
