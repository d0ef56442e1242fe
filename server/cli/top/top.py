"""Follows the engine's events and draws them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from urllib.parse import urlencode

from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import ServerClient
from server.cli.top.history import History
from server.cli.top.picture import draw

_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_EVENTS_OF_ONE_PICTURE = 2  # a rate needs two


async def follow(client: ServerClient, model: str | None, *, is_once: bool) -> None:
    """Draws until it is cancelled; one picture of all requests if `is_once`.

    Raises:
        NoServer, NoAnswer: the server cannot be reached, refuses the stream, or ended it.
    """
    history, num_events = History(), 0
    path = "/engine/events" + ("" if model is None else "?" + urlencode({"model": model}))
    async with aclosing(client.events(path)) as events:
        async for event in events:
            history.add(event)
            num_events += 1
            size = shutil.get_terminal_size()
            if not is_once:
                lines = draw(event, history, width=size.columns, height=size.lines, where=client.url)
                _put("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
            elif num_events == _EVENTS_OF_ONE_PICTURE:
                lines = draw(event, history, width=size.columns, height=sys.maxsize, where=client.url)
                _put("\n".join(lines) + "\n")
                return
    raise NoAnswer(f"the server at {client.url} shuts down")


@contextmanager
def own_screen() -> Iterator[None]:
    """Draws on the terminal's second screen, so that the first one is as it was afterwards."""
    _put(_ENTER)
    try:
        yield
    finally:
        _put(_LEAVE)


def _put(text: str) -> None:
    print(text, end="", flush=True)
