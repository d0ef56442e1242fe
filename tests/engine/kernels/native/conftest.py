"""Every test here runs once for each variant of the kernels that was built and runs on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.native_variants import loaded, variants_to_test

# Modules whose kernels know no matrix unit. The variants that differ in it alone would run the same code once more.
_WITHOUT_MATRICES = ("test_argmax", "test_packer", "test_sampler")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        name = metafunc.module.__name__.rpartition(".")[2]
        variants = variants_to_test(with_tile_registers=name not in _WITHOUT_MATRICES)
        # Not of the session: the variant of the last test here would be that of all tests behind it.
        metafunc.parametrize("variant", variants, indirect=True, scope="module")


@pytest.fixture(scope="module")
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """The variant that the kernels of this test are of."""
    with loaded(request.param):
        yield request.param
