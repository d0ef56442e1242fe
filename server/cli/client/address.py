"""The server's address and API key, as the user gives them to a command."""

import re

from yarl import URL

from server.cli.client.errors import NoAnswer

DEFAULT_URL = "http://127.0.0.1:8000"

_KEY = re.compile(r"[!-~]+")
_CREDENTIALS = re.compile(r"^([^/?#]*//)?.*@")


def first_key(text: str | None) -> str | None:
    """The first key of `text`, one or a list with names as in `eagre serve --api-key`; raises NoAnswer if unfit."""
    if text is None:
        return None
    entry = text.partition(",")[0].split()
    if not entry or not _KEY.fullmatch(entry[0]):
        raise NoAnswer("the key (--api-key, --compare-api-key or EAGRE_API_KEY) must be visible ASCII characters")
    return entry[0]


def root_of(url: str) -> str:
    """The address without its last slash and without `/v1`, which other clients want at its end."""
    return url.rstrip("/").removesuffix("/v1")


def shown(url: str) -> str:
    """The address for output: without the user name and the password before its `@`."""
    return _CREDENTIALS.sub(r"\1…@", url)


def check_address(url: str, key: str | None) -> None:
    """Raises NoAnswer where `url` is not the address of a server, or has a password although there is a key."""
    try:
        parts = URL(url)
    except ValueError:
        parts = URL()
    if parts.scheme not in ("http", "https") or not parts.host:
        raise NoAnswer(f"{shown(url)} is not the address of a server")
    if key is not None and (parts.user is not None or parts.password is not None):
        raise NoAnswer(f"{shown(url)} has a name or a password, and there is a key too; a request takes only one")
