"""The settings of `eagre deploy`: the number of replicas, their resources, and the Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.interface.setting import NOT_EMPTY, Limit, at_least, check, from_to, setting, settings_of
from server.startup.flags import add_flag, as_given, read
from server.startup.settings import SettingsError

DEFAULT_MAX_REPLICAS = 4  # where only --min-replicas asks for autoscaling
MOST_REPLICAS = 10_000

_COUNT = Limit(lambda count: 1 <= count <= MOST_REPLICAS, f"it must be from 1 to {MOST_REPLICAS}")
_SHARE = Limit(lambda amount: 0 <= amount <= MOST_REPLICAS, f"it must be from 0 to {MOST_REPLICAS}")


@dataclass(frozen=True)
class DeployPlan:
    """Every field is a flag of `eagre deploy` (`--min-replicas`) and a variable; raises SettingsError."""

    replicas: int | None = setting(None, "a fixed number of replicas (default 1)", limit=_COUNT, metavar="N")
    min_replicas: int | None = setting(
        None, "fewest replicas; turns on autoscaling (default 1 beside --max-replicas)", limit=_COUNT, metavar="N"
    )
    max_replicas: int | None = setting(
        None,
        f"most replicas; turns on autoscaling (default {DEFAULT_MAX_REPLICAS}, or --min-replicas where that is more)",
        limit=_COUNT,
        metavar="N",
    )
    target_queued_tokens: int = setting(
        4096, "prompt tokens waiting in each replica above which there shall be more replicas", limit=at_least(1)
    )
    upscale_delay: float = setting(
        10.0, "time for which more replicas must be wanted until they come", limit=_SHARE, metavar="SECONDS"
    )
    downscale_delay: float = setting(
        300.0, "time for which fewer replicas must be enough until some go", limit=_SHARE, metavar="SECONDS"
    )
    replica_cpus: float = setting(
        1.0, "processor cores that each replica reserves of Ray, and computes with", limit=_SHARE, metavar="N"
    )
    replica_gpus: float = setting(0.0, "GPUs that each replica reserves of Ray", limit=_SHARE, metavar="N")
    max_surge: int = setting(
        0, "share of replicas in percent that an update may start before old ones end, where Ray has room for them",
        limit=from_to(0, 100), metavar="PERCENT",
    )  # fmt: skip
    ray_address: str | None = setting(
        None,
        "a Ray cluster that runs already (HOST:PORT or auto); if neither this nor RAY_ADDRESS is given, Ray is started "
        "on this machine for as long as the command runs",
        limit=NOT_EMPTY,
        metavar="ADDRESS",
    )
    application: str = setting("eagre", "name of the application in Ray Serve", limit=NOT_EMPTY, metavar="NAME")
    update: bool = setting(
        False, "give the replicas of the running application these settings, one after the other, and exit"
    )

    def __post_init__(self) -> None:
        try:
            check(self)
        except ValueError as error:
            raise SettingsError(str(error)) from error
        if self.replicas is not None and self.is_autoscaled:
            raise SettingsError(
                f"replicas is {self.replicas}, a fixed number; it does not go with min_replicas and max_replicas"
            )
        if self.least > self.most:
            raise SettingsError(f"min_replicas is {self.least}; it must be at most max_replicas, which is {self.most}")

    @property
    def is_autoscaled(self) -> bool:
        return self.min_replicas is not None or self.max_replicas is not None

    @property
    def least(self) -> int:
        """The fewest replicas, also at the start."""
        return self.replicas or self.min_replicas or 1

    @property
    def most(self) -> int:
        if not self.is_autoscaled:
            return self.least
        return self.max_replicas or max(self.least, DEFAULT_MAX_REPLICAS)

    @classmethod
    def add_flags(cls, parser: argparse.ArgumentParser) -> None:
        """Adds a flag for each field; one that is not given is None in the namespace."""
        for declared in settings_of(cls).values():
            add_flag(parser, declared)

    @classmethod
    def from_sources(cls, flags: Mapping[str, Any], environment: Mapping[str, str]) -> DeployPlan:
        """The first of flag, environment variable and default that is given. A flag for a fixed number also wins over
        variables for autoscaling, and the other way round.

        Raises SettingsError: a value cannot be read or is outside its limits.
        """
        scaling = ("min_replicas", "max_replicas")
        overridden: tuple[str, ...] = ()
        if flags.get("replicas") is not None:
            overridden = scaling
        elif any(flags.get(name) is not None for name in scaling):
            overridden = ("replicas",)
        ignored = {f"EAGRE_{name.upper()}" for name in overridden}
        variables = {name: text for name, text in environment.items() if name not in ignored}
        try:
            return cls(**read(settings_of(cls).values(), flags, variables))
        except ValueError as error:
            raise SettingsError(as_given(str(error), settings_of(cls).values(), flags, variables)) from error
