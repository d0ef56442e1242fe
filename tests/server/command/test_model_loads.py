"""A model is prepared for grammars while nobody waits for anything, so that no stream pauses for it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.command import model_loads
from server.command.model_loads import prepare_when_quiet
from tests.patience import PATIENCE_S


@pytest.mark.parametrize("error", [None, RuntimeError("no memory")])
async def test_a_model_is_prepared_once_no_model_answers(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setattr(model_loads, "QUIET_POLL_S", 0.001)
    monkeypatch.setattr(model_loads, "QUIET_S", 0.004)
    prepared = 0

    def prepare() -> None:
        nonlocal prepared
        prepared += 1
        if error is not None:
            raise error

    served = SimpleNamespace(num_generations=1)
    model = SimpleNamespace(model_name="x", prepare_grammars=prepare)
    task = asyncio.ensure_future(prepare_when_quiet(cast(Any, served), cast(Any, model)))
    await asyncio.sleep(0.03)
    assert prepared == 0
    served.num_generations = 0
    await asyncio.wait_for(task, PATIENCE_S)
    assert prepared == 1
