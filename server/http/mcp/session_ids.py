"""The ids of MCP sessions as clients see them: each works with the key alone that has begun the session.

All clients share the operator's key at an MCP server, so that it cannot tell them apart.
"""

from __future__ import annotations

import hashlib
import hmac

from server.admission.keyring import Tenant

_SEPARATOR = "."


def seal(session_id: str, server: str, tenant: Tenant) -> str:
    """The id that a client gets for a session; the MCP server's own where no keys are set."""
    tag = _tag(session_id, server, tenant)
    return session_id if tag is None else f"{tag}{_SEPARATOR}{session_id}"


def unseal(sealed: str, server: str, tenant: Tenant) -> str | None:
    """The MCP server's id of a client's session; None where it is no session of this client."""
    if tenant.salt is None:
        return sealed
    tag, _, session_id = sealed.partition(_SEPARATOR)
    expected = _tag(session_id, server, tenant)
    is_own = expected is not None and hmac.compare_digest(expected.encode(), tag.encode("utf-8", "surrogateescape"))
    return session_id if is_own else None


def _tag(session_id: str, server: str, tenant: Tenant) -> str | None:
    """The same on every replica of a front, and after a restart."""
    if tenant.salt is None:
        return None
    message = f"mcp session\n{server}\n{session_id}".encode("utf-8", "surrogateescape")
    return hmac.new(tenant.salt.encode(), message, hashlib.sha256).hexdigest()[:32]
