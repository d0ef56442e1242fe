"""Where the events of pages are published."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engine.interface.setting import Limit

LARGEST_PORT = 65534  # the next port is for replays
DEMAND = f"it must be tcp://HOST:PORT with a port from 1 to {LARGEST_PORT}, where * is the host for all addresses"
_FORM = re.compile(r"tcp://(?P<host>\*|\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]*]+):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class KVEndpoint:
    """An address of TCP at which this process listens."""

    host: str  # an address of this machine, the name of a network interface, or * for all
    port: int  # of the events; requests for a replay go to the next one

    @classmethod
    def parse(cls, text: str) -> KVEndpoint:
        """
        Raises:
            ValueError: the text has another form.
        """
        match = _FORM.fullmatch(text)
        if match is None or not 1 <= int(match["port"]) <= LARGEST_PORT:
            raise ValueError(DEMAND)
        return cls(match["host"], int(match["port"]))

    def shifted(self, index: int) -> KVEndpoint:
        """That of a further model in one server: each takes two ports.

        Raises:
            ValueError: there are no such ports.
        """
        return KVEndpoint.parse(f"tcp://{self.host}:{self.port + 2 * index}")

    @property
    def events(self) -> str:
        """The address of the PUB socket."""
        return f"tcp://{self.host}:{self.port}"

    @property
    def replays(self) -> str:
        """The address of the ROUTER socket."""
        return f"tcp://{self.host}:{self.port + 1}"


def _is_endpoint(text: str) -> bool:
    try:
        KVEndpoint.parse(text)
    except ValueError:
        return False
    return True


ENDPOINT = Limit(_is_endpoint, DEMAND)
