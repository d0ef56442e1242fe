"""Fixtures that the tests of the engine share."""

from __future__ import annotations

import pytest

from engine.kernels.bodies import BODIES
from engine.kernels.interface.body import Body, BodyUnavailable
from engine.kernels.native import library


@pytest.fixture
def native() -> str:
    """The variant of the native kernels; a test that uses it is skipped if there are none."""
    try:
        return library.load()
    except library.NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=BODIES, ids=lambda body: body.name)
def body(request: pytest.FixtureRequest) -> Body:
    """Runs a test with each body that can be had here."""
    try:
        request.param.load()
    except BodyUnavailable as error:
        pytest.skip(str(error))
    chosen: Body = request.param
    return chosen
