"""Every test here runs once for each variant of the kernels that was built and runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.native_variants import loaded, variants_to_test


# Not of the session: the variant of the last test here would be that of all tests behind it.
@pytest.fixture(scope="module", params=variants_to_test())
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """The variant that the kernels of this test are of."""
    with loaded(request.param):
        yield request.param
