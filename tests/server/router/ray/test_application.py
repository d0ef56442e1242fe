"""What the front does with an address book on a machine that is frozen. Ray is a stand-in of some lines."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from server.router.ray import application
from server.router.ray.application import CannotDeploy, RayApplication
from server.router.ray.plan import DeployPlan
from server.startup.settings import ServerSettings


class SilentBook:
    """An actor whose calls never end."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *_arguments: asyncio.get_running_loop().create_future())


async def test_a_book_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "0")  # the application sets those that are missing
    ray = ModuleType("ray")
    book = SilentBook()
    vars(ray).update(
        serve=None, exceptions=SimpleNamespace(RayError=OSError), get_actor=lambda *_arguments, **_options: book
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(application, "BOOK_S", 0.02)
    deployed = RayApplication(DeployPlan(), ServerSettings(), {})
    deployed.find_book()
    with pytest.raises(CannotDeploy, match="silent"):
        await deployed.read_book(-1)
    with pytest.raises(CannotDeploy, match="silent"):
        await deployed.reload()
