"""Fixtures that the tests of the engine share."""

from __future__ import annotations

import pytest

from engine.backends.backends import BACKENDS
from engine.backends.base.backend import Backend, BackendUnavailable
from engine.backends.native import library


@pytest.fixture
def native() -> str:
    """The variant of the native kernels; a test that uses it is skipped if there are none."""
    try:
        return library.load()
    except library.NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Runs a test with each backend that can be had here."""
    try:
        request.param.load()
    except BackendUnavailable as error:
        pytest.skip(str(error))
    chosen: Backend = request.param
    return chosen
