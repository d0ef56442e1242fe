"""Who may use a server: checks of host names, web origins and API keys.

The first two keep a page in somebody's browser from using a server on the same machine: a page of another site can make
a browser send requests to 127.0.0.1. The browser says in `Origin` and `Sec-Fetch-Site` (Fetch standard; Fetch Metadata
Request Headers) from where a request comes. And a name that resolves to 127.0.0.1 only now, which makes the page's
origin look like the server's own (DNS rebinding), is no name that this server answers to.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from server.admission.keyring import ANYBODY, NOBODY, KeyRing, Tenant, presented_key, work_for
from server.protocol.errors import ApiError, shorten

ANY_ORIGIN = "*"
LOCAL_ORIGINS = "localhost"  # those of pages that this machine itself serves, at any port
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

# A name or an IPv4 address, or an IPv6 address in brackets; then the port (RFC 9110, section 7.2).
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:@/\s]*))(?::[0-9]*)?")

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})  # none: the user typed the address


class Access(Enum):
    """Whose key a route wants."""

    PUBLIC = "public"  # nobody's
    CLIENT = "client"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may use one application.

    Args:
        keys: None where no route wants a key, as on a port of metrics alone.
        hosts: names by which clients may call the server where no key guards it; None: a Unix socket.
        origins: web origins whose pages may use the server.
    """

    keys: KeyRing | None
    hosts: Collection[str] | None
    origins: Collection[str]

    def admit(self, method: str, host: str, headers: Mapping[str, str], access: Access, *, is_socket: bool) -> Tenant:
        """The tenant of a request, for whom the running task works from now on.

        Raises ApiError: 421, 403, 401 or 404; the request must not reach its handler.
        """
        self.check_host(host)
        if is_socket or method not in _SAFE_METHODS:
            check_origin(method, headers, host, self.origins, is_socket=is_socket)
        if self.keys is None or access is Access.PUBLIC:
            tenant = ANYBODY
        elif access is Access.ADMIN:
            tenant = self.keys.identify_admin(presented_key(headers))
        else:
            tenant = self.keys.identify(presented_key(headers))
        work_for(NOBODY if self.keys is None else self.keys.caller_of(tenant))
        return tenant

    def still_admits(self, tenant: Tenant) -> bool:
        """Whether a tenant that came in before may ask for more: the keys may have been read again since."""
        return self.keys is None or self.keys.holds(tenant)

    def check_host(self, host: str) -> None:
        """Refuses a Host header that an attacker's name server may have made up; raises ApiError (421).

        Browsers always send the header. A program without it is no victim of a name that points elsewhere.
        """
        if host and self.hosts is not None and (self.keys is None or self.keys.is_open):
            check_host(host, self.hosts)


def check_host(host: str, allowed: Collection[str]) -> None:
    """Lets through `localhost`, literal addresses and the allowed names; raises ApiError (421) for any other.

    `allowed` are in lower case; one that begins with a dot allows what ends with it, "*" allows all.
    """
    name = _name_of(host)
    if name == "localhost" or name.endswith(".localhost") or _is_address(name):
        return
    if "*" in allowed or name in allowed or any(entry.startswith(".") and name.endswith(entry) for entry in allowed):
        return
    raise ApiError(
        f"this server does not answer to the name {shorten(name or host)}; --allowed-hosts names those it answers to",
        status=421,
        code="host_not_allowed",
    )


def check_origin(
    method: str, headers: Mapping[str, str], host: str, allowed: Collection[str], *, is_socket: bool
) -> None:
    """Refuses what a page of another site makes a browser send, except from the allowed origins.

    Programs send neither header and pass. So does reading, but for a WebSocket, which no other rule of browsers guards.
    `host` is checked already. Raises ApiError (403).
    """
    if method in _SAFE_METHODS and not is_socket:
        return
    origin = headers.get("Origin")
    if origin is not None and is_allowed(origin, allowed):
        return
    site = headers.get("Sec-Fetch-Site")
    if site is not None and site not in _OWN_SITES:
        raise foreign_origin(origin or site)
    if origin is not None and not _is_own(origin, host):
        raise foreign_origin(origin)


def is_allowed(origin: str, allowed: Collection[str]) -> bool:
    """Whether an origin is one of those that were named."""
    return ANY_ORIGIN in allowed or origin in allowed or (LOCAL_ORIGINS in allowed and _is_local(origin))


def foreign_origin(origin: str) -> ApiError:
    """The refusal of a page of another site."""
    return ApiError(
        f"a page from {shorten(origin)} may not use this server; --allowed-origins names those that may",
        status=403,
        error_type="permission_error",
        code="origin_not_allowed",
    )


def _is_local(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.hostname in _LOCAL_NAMES
    except ValueError:
        return False


def _is_own(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """The host without its port, in lower case; of an IPv6 address without its brackets. "" where it is no host."""
    found = _HOST.fullmatch(host)
    if found is None:
        return ""
    return (found[1] or found[2] or "").rstrip(".").lower()


def _is_address(name: str) -> bool:
    address, is_scoped, _ = name.partition("%")
    try:
        return ipaddress.ip_address(address).version == 6 or not is_scoped
    except ValueError:
        return False
