"""Unknown parameters of requests: a warning once for each name, or a refusal."""

from collections.abc import Sequence

from server.protocol.errors import UnknownField
from server.startup.logs import log

_MAX_NAMES_TOLD = 256  # in the log of one server; clients make up names without end


class IgnoredParameters:
    """Logs or refuses the unknown parameters of one server's requests."""

    def __init__(self, *, is_strict: bool) -> None:
        """
        Args:
            is_strict: whether they are refused.
        """
        self._is_strict = is_strict
        self._told: set[str] = set()

    def tell(self, names: Sequence[str]) -> None:
        """Logs each name once; raises UnknownField for one where this server is strict."""
        if names and self._is_strict:
            raise UnknownField(names[0])
        for name in names:
            if name not in self._told and len(self._told) < _MAX_NAMES_TOLD:
                self._told.add(name)
                log.warning("parameter_ignored", param=name)
