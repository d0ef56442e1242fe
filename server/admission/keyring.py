"""API keys, the tenants that hold them, and the tenant for whom the running task works.

A key is compared by its SHA-256 digest in constant time, and only its name appears in logs.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from engine.interface.regular_file import open_regular
from server.admission.limits.key_account import KeyAccount
from server.admission.limits.key_limits import NO_LIMIT, KeyLimits, parse_limits
from server.protocol.errors import ApiError

LEAST_KEY_LENGTH = 8  # characters; a shorter key can be guessed
MAX_FILE_BYTES = 1 << 20

AUTHENTICATION_ERROR = "authentication_error"
ADMIN_NAME = "admin"
FRONT_NAME = "front"  # of the key with which a front asks for figures

# A WebSocket in a browser cannot send headers, but it can ask for subprotocols.
WEBSOCKET_PROTOCOL = "eagre"
WEBSOCKET_KEY_PREFIX = "eagre-api-key."

BACKGROUND_PRIORITY = 1 << 30  # of requests of batches; above what a key may have

_KEY = re.compile(r"[!-~]+")  # visible ASCII, as a header can carry it
_PRIORITY = re.compile(r"(priority=)?(-?\d{1,9})")
_SALT_PURPOSE = b"eagre prefix cache"


class KeyFileError(ValueError):
    """A file of keys cannot be read, or a line in it is wrong; the message names file and line, never a key."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """The holder of a key. Requests of different tenants share no cached prefix and have fair shares of the engine."""

    name: str  # for logs
    salt: str | None = None  # of the prefix cache, derived from the key; None where no keys are set
    least_priority: int | None = 0  # a request may ask for no lower number, which would run earlier; None: any
    is_admin: bool = False
    account: KeyAccount | None = field(default=None, compare=False)  # None where no keys are set
    is_background: bool = False  # whether its requests are those of a batch, behind all others

    @property
    def owner(self) -> str:
        """Whose stored records are whose. It tells nothing of the key or of the salt; "" where no keys are set."""
        return "" if self.salt is None else hashlib.sha256(self.salt.encode()).hexdigest()

    def cache_salt(self, asked: str | None) -> str | None:
        """The salt of a request: what a client asks for only narrows who shares its prefixes.

        The length of the first part is fixed, so that no pair of salts can be mistaken for another.
        """
        if self.salt is None:
            return asked
        return f"{self.salt}/{asked or ''}"

    def in_background(self) -> Tenant:
        """The same tenant for the requests of its batches, which run behind those of all tenants."""
        least = max(BACKGROUND_PRIORITY, self.least_priority or 0)
        return replace(self, name=f"{self.name} (batch)", least_priority=least, is_background=True)

    def check_priority(self, priority: int | None) -> int:
        """The priority of a request: the one that it asks for, or where it asks for none, 0 or the least allowed.

        Raises:
            ApiError: the request asks to run earlier than this tenant's may.
        """
        if priority is not None and self.least_priority is not None and priority < self.least_priority:
            raise ApiError(
                f"priority is {priority}; with this key it must be at least {self.least_priority}",
                param="priority",
                code="invalid_value",
            )
        return max(0, self.least_priority or 0) if priority is None else priority


ANYBODY = Tenant("anybody", least_priority=None)  # where no key is set
NOBODY = ""  # no tenant in particular: the server itself, or all clients where none is told from the others

_caller: ContextVar[str] = ContextVar("caller", default=NOBODY)


def work_for(name: str) -> None:
    """From now on the running task works for the tenant of this name, or for NOBODY.

    Tasks that it starts inherit the name, so that what takes a share of a budget or waits for a thread, deep below the
    handler of a request, finds whose share it is.
    """
    _caller.set(name)


def caller() -> str:
    """The name of the tenant for whom the running task works, or NOBODY."""
    return _caller.get()


class KeyRing:
    """The keys of a server. Without any, everybody is `ANYBODY`, and nobody is the administrator."""

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None, admin_keys: Sequence[str] = ()) -> None:
        """
        Raises:
            KeyFileError: the file cannot be read, or a key is unfit.
        """
        self._fixed = [_parse(f"--api-key, entry {at}", line) for at, line in enumerate(keys, start=1)]
        self._file = file
        self._accounts = {ADMIN_NAME: KeyAccount(ADMIN_NAME)} if admin_keys else {}
        self._admins = {
            _digest(key): Tenant(ADMIN_NAME, _salt(key), None, is_admin=True, account=self._accounts[ADMIN_NAME])
            for key in (_checked("--admin-key", key) for key in admin_keys)
        }
        self._tenants: dict[bytes, Tenant] = {}
        self._by_owner: dict[str, Tenant] = {}
        self._in_force: frozenset[Tenant] = frozenset()
        self._has_several_names = False
        self.reload()

    @property
    def is_open(self) -> bool:
        """Whether everybody may generate."""
        return not self._tenants

    @property
    def has_admin(self) -> bool:
        return bool(self._admins)

    def reload(self) -> None:
        """Reads the file of keys again; on an error the keys stay as they were. Names keep what they have used.

        Raises:
            KeyFileError: as for the constructor.
        """
        entries = list(self._fixed)
        if self._file is not None:
            read = _read(self._file)
            if not read:
                raise KeyFileError(f"{self._file} has no key; a file without keys would open the server to everybody")
            entries += read
        limits: dict[str, KeyLimits] = {}
        for entry in entries:
            if limits.setdefault(entry.name, entry.limits) != entry.limits:
                raise KeyFileError(f"{entry.where}: keys of one name share their limits; {entry.name} has others above")
        accounts = {name: self._accounts.get(name) or KeyAccount(name) for name in limits}
        for name, account in accounts.items():
            account.set_limits(limits[name])
        if ADMIN_NAME in self._accounts:
            accounts.setdefault(ADMIN_NAME, self._accounts[ADMIN_NAME])
        self._accounts = accounts
        self._tenants = {
            _digest(entry.key): Tenant(entry.name, _salt(entry.key), entry.least_priority, account=accounts[entry.name])
            for entry in entries
        }
        self._by_owner = {tenant.owner: tenant for tenant in (*self._tenants.values(), *self._admins.values())}
        self._in_force = frozenset((*self._tenants.values(), *self._admins.values()))
        self._has_several_names = len({tenant.name for tenant in self._tenants.values()} - {FRONT_NAME}) > 1

    def holds(self, tenant: Tenant) -> bool:
        """Whether a tenant that was identified before is still one, with the same rights."""
        return tenant in self._in_force or (self.is_open and tenant is ANYBODY)

    def owner_of(self, owner: str) -> Tenant | None:
        """The tenant whose stored records have this owner; None where its key is not in force any more."""
        if not owner:
            return ANYBODY if self.is_open else None
        return self._by_owner.get(owner)

    def caller_of(self, tenant: Tenant) -> str:
        """The name by which budgets and queues tell the tenant from others; NOBODY where there are no others.

        A client that is the only one has all that there is, and nothing is kept free for others.
        """
        return tenant.name if self._has_several_names or tenant.is_admin else NOBODY

    @property
    def accounts(self) -> list[KeyAccount]:
        """What the keys have used, by their names."""
        return [account for account in self._accounts.values() if account.name != FRONT_NAME]

    def account(self, name: str) -> KeyAccount | None:
        """What the keys of a name have used."""
        return self._accounts.get(name)

    @property
    def has_token_limits(self) -> bool:
        """Whether any key may have only so many tokens a minute."""
        return any(account.limits.tokens_per_minute is not None for account in self._accounts.values())

    @property
    def num_keys(self) -> int:
        """How many keys clients have, those of administrators aside."""
        return len(self._tenants)

    def identify(self, key: str | None) -> Tenant:
        """Whose key this is.

        Raises:
            ApiError: 401, there are keys and this is none of them.
        """
        tenant = self.find(key)
        if tenant is not None:
            return tenant
        if self.is_open:
            return ANYBODY  # clients without need of a key often send some dummy
        raise _refusal(key)

    def identify_admin(self, key: str | None) -> Tenant:
        """
        Raises:
            ApiError: 401 or 403, this is not the administrator's key; 404 where there is none.
        """
        if not self.has_admin:
            raise ApiError("admin routes are off; --admin-key turns them on", status=404, code="admin_off")
        tenant = self.find(key)
        if tenant is None:
            raise _refusal(key)
        if not tenant.is_admin:
            raise ApiError(
                "this key is not the administrator's", status=403, error_type="permission_error", code="not_admin"
            )
        return tenant

    def find(self, key: str | None) -> Tenant | None:
        """Whose key this is, an administrator's included; None where it is none of them."""
        if key is None:
            return None
        digest, found = _digest(key), None  # compared with every key, so that the time tells nothing
        for keys in (self._tenants, self._admins):
            for known, tenant in keys.items():
                if hmac.compare_digest(known, digest):
                    found = tenant
        return found


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key that a request shows: a bearer token (RFC 6750), Anthropic's `x-api-key`, or a WebSocket subprotocol."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if headers.get("x-api-key"):
        return headers["x-api-key"]
    for protocol in headers.get("Sec-WebSocket-Protocol", "").split(","):
        if protocol.strip().startswith(WEBSOCKET_KEY_PREFIX):
            return protocol.strip().removeprefix(WEBSOCKET_KEY_PREFIX)
    return None


def _refusal(key: str | None) -> ApiError:
    message = (
        "this server wants an API key: send it as 'Authorization: Bearer KEY'"
        if key is None
        else "the API key is not known to this server"
    )
    return ApiError(
        message,
        status=401,
        error_type=AUTHENTICATION_ERROR,
        code="invalid_api_key",
        headers={"WWW-Authenticate": 'Bearer realm="eagre"'},
    )


class _Entry(NamedTuple):
    """A line of the file of keys."""

    where: str
    key: str
    name: str
    least_priority: int
    limits: KeyLimits


def _read(path: Path) -> list[_Entry]:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise KeyFileError(f"the keys in {path} cannot be read: {reason}") from error
    if len(content) > MAX_FILE_BYTES:
        raise KeyFileError(f"{path} has more than {MAX_FILE_BYTES} bytes; it should hold one key a line")
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    return [_parse(f"{path}, line {number}", line) for number, line in lines if line and not line.startswith("#")]


def _parse(where: str, line: str) -> _Entry:
    """`KEY NAME PRIORITY RATE STREAMS TOKENS/MIN`, of which all but the first may be missing, or be `-`.

    The priority may be written `priority=N`, and stand without a name.
    """
    key, *rest = line.split()
    _checked(where, key)
    name, least_priority = f"key-{hashlib.sha256(key.encode()).hexdigest()[:8]}", 0
    if rest and not rest[0].startswith("priority="):
        word = rest.pop(0)
        name = name if word == NO_LIMIT else word
    if rest:
        word = rest.pop(0)
        option = _PRIORITY.fullmatch(word)
        if option is not None:
            least_priority = int(option[2])
        elif word != NO_LIMIT:
            raise KeyFileError(
                f"{where}: a key's priority must be a whole number, 'priority=N' or '-', not {word[:40]!r}"
            )
    try:
        limits = parse_limits(rest)
    except ValueError as error:
        raise KeyFileError(f"{where}: {error}") from error
    return _Entry(where, key, name, least_priority, limits)


def _checked(where: str, key: str) -> str:
    if len(key) < LEAST_KEY_LENGTH or not _KEY.fullmatch(key):
        raise KeyFileError(f"{where}: a key must have at least {LEAST_KEY_LENGTH} visible ASCII characters")
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _salt(key: str) -> str:
    return hmac.new(key.encode(), _SALT_PURPOSE, hashlib.sha256).hexdigest()
