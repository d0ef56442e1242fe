"""A plan of a model that is loaded as a test says, and that nothing speaks against before."""

from __future__ import annotations

from collections.abc import Callable

from engine.interface.types import Progress
from server.startup.model_loader import LoadedModel
from server.startup.model_sizes import ModelBytes
from server.startup.settings import ServerSettings

Load = Callable[[ServerSettings, Progress], LoadedModel]


class FakePlan:
    def __init__(self, load: Callable[[Progress], LoadedModel]) -> None:
        self.num_bytes = ModelBytes()
        self.load = load


def planning(load: Load) -> Callable[[ServerSettings, Progress], FakePlan]:
    """What plans models that `load` loads."""
    return lambda settings, _: FakePlan(lambda progress: load(settings, progress))
