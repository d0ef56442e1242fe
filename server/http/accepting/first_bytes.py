"""The first bytes of a new connection: whether it goes before others."""

from __future__ import annotations

import re

from server.admission.keyring import KeyRing
from server.admission.probes import ANSWERED_ALWAYS

# As clients send them; one that writes its key in another way only waits with the others.
_KEY = re.compile(rb"\r\n(?:authorization: *bearer +|x-api-key: *)([!-~]+) *\r\n", re.IGNORECASE)


class FirstBytes:
    """Finds probes, and requests with a valid key, by the first bytes of their connections.

    Args:
        prefix: under which all routes are too; None: there is none.
        is_encrypted: the bytes tell nothing.
    """

    def __init__(self, prefix: str | None, keys: KeyRing | None, *, is_encrypted: bool) -> None:
        paths = "|".join(map(re.escape, sorted(ANSWERED_ALWAYS)))
        self._probe = re.compile(rf"(?:GET|HEAD) (?:{re.escape(prefix or '')})?(?:{paths})[ ?]".encode())
        self._keys = keys
        self._is_encrypted = is_encrypted

    def go_first(self, head: bytes) -> bool:
        """Whether the connection goes before those of strangers."""
        if self._is_encrypted:
            return False
        if self._probe.match(head) is not None:
            return True
        shown = None if self._keys is None else _KEY.search(head)
        return self._keys is not None and shown is not None and self._keys.find(shown[1].decode("ascii")) is not None
