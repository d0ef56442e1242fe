"""Network addresses in the configuration: HOST:PORT of host 0 or of a peer, and the endpoint of page events."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.interface.setting import Limit

LARGEST_PORT = 65534  # the next port is used too
_HOST = r"\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]*]+"
_ADDRESS = re.compile(rf"(?P<host>{_HOST}):(?P<port>[0-9]{{1,5}})")
_ADDRESS_DEMAND = f"it must be HOST:PORT with a port from 1 to {LARGEST_PORT}"
_ENDPOINT = re.compile(rf"tcp://(?P<host>\*|{_HOST}):(?P<port>[0-9]{{1,5}})")
_ENDPOINT_DEMAND = (
    f"it must be tcp://HOST:PORT with a port from 1 to {LARGEST_PORT}, where * is the host for all addresses"
)


@dataclass(frozen=True, slots=True)
class HostAddress:
    """The address of host 0 for all hosts, or of a peer."""

    host: str  # a name or an address, without brackets
    port: int  # of JAX's coordinator, or of the peer

    @classmethod
    def parse(cls, text: str) -> HostAddress:
        """Raises ValueError if the text has another form."""
        host, port = _parsed(text, _ADDRESS, _ADDRESS_DEMAND)
        return cls(host.strip("[]"), port)

    @property
    def plan_port(self) -> int:
        """The port at which followers receive the steps."""
        return self.port + 1

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class KVEndpoint:
    """The TCP endpoint at which this process publishes page events."""

    host: str  # an address of this machine, the name of a network interface, or * for all
    port: int  # of the events; requests for a replay go to the next one

    @classmethod
    def parse(cls, text: str) -> KVEndpoint:
        """Raises ValueError if the text has another form."""
        return cls(*_parsed(text, _ENDPOINT, _ENDPOINT_DEMAND))

    def shifted(self, index: int) -> KVEndpoint:
        """The endpoint of a further model of the server, two ports each; raises ValueError if there are none."""
        return KVEndpoint.parse(f"tcp://{self.host}:{self.port + 2 * index}")

    @property
    def events(self) -> str:
        """The address of the PUB socket."""
        return f"tcp://{self.host}:{self.port}"

    @property
    def replays(self) -> str:
        """The address of the ROUTER socket."""
        return f"tcp://{self.host}:{self.port + 1}"


def _parsed(text: str, form: re.Pattern[str], demand: str) -> tuple[str, int]:
    match = form.fullmatch(text)
    if match is None or not 1 <= int(match["port"]) <= LARGEST_PORT:
        raise ValueError(demand)
    return match["host"], int(match["port"])


def _accepts(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


HOST_ADDRESS = Limit(lambda text: _accepts(HostAddress.parse, text), _ADDRESS_DEMAND)
ENDPOINT = Limit(lambda text: _accepts(KVEndpoint.parse, text), _ENDPOINT_DEMAND)
