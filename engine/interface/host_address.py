"""Where the first of several hosts listens for the others."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.interface.setting import Limit

LARGEST_PORT = 65534  # the next port is for the plans of steps
DEMAND = f"it must be HOST:PORT with a port from 1 to {LARGEST_PORT}"
_FORM = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]*]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class HostAddress:
    """An address of host 0 that all hosts reach."""

    host: str  # a name or an address, without brackets
    port: int  # of JAX's coordinator

    @classmethod
    def parse(cls, text: str) -> HostAddress:
        """
        Raises:
            ValueError: the text has another form.
        """
        match = _FORM.fullmatch(text)
        if match is None or not 1 <= int(match["port"]) <= LARGEST_PORT:
            raise ValueError(DEMAND)
        return cls(match["host"].strip("[]"), int(match["port"]))

    @property
    def plan_port(self) -> int:
        """Where followers connect to be told every step."""
        return self.port + 1

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_address(text: str) -> bool:
    try:
        HostAddress.parse(text)
    except ValueError:
        return False
    return True


HOST_ADDRESS = Limit(_is_address, DEMAND)
