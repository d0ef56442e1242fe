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

    def owner(self, head: bytes) -> str | None:
        """Whose turn the connection takes before those of strangers: a key's, or "" for that of a probe's address. None
        where it does not go before them.
        """
        if self._is_encrypted:
            return None
        shown = None if self._keys is None else _KEY.search(head)
        tenant = None if self._keys is None or shown is None else self._keys.find(shown[1].decode("ascii"))
        if tenant is not None:
            return f"key {tenant.name}"
        return "" if self._probe.match(head) is not None else None
