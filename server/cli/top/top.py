"""Follows an engine's events and draws each of them in the terminal."""

from contextlib import aclosing, nullcontext
from urllib.parse import urlencode

from rich.console import Console
from rich.live import Live

from server.cli.client.errors import NoAnswer
from server.cli.client.server_client import ServerClient
from server.cli.top.history import History
from server.cli.top.picture import draw

_EVENTS_OF_ONE_PICTURE = 2  # a rate needs two


async def follow(client: ServerClient, model: str | None, *, is_once: bool) -> None:
    """Draws on the terminal's alternate screen until it is cancelled, or once; raises NoServer or NoAnswer."""
    history, num_events = History(), 0
    path = "/engine/events" + ("" if model is None else "?" + urlencode({"model": model}))
    console = Console(highlight=False)
    live = None if is_once or not console.is_terminal else Live(console=console, screen=True, auto_refresh=False)
    async with aclosing(client.events(path)) as events:
        with live or nullcontext():
            async for event in events:
                history.add(event)
                num_events += 1
                height = None if live is None else console.height
                picture = draw(event, history, width=console.width, height=height, where=client.url)
                if live is not None:
                    live.update(picture, refresh=True)
                elif num_events == _EVENTS_OF_ONE_PICTURE:
                    console.print(picture)
                    return
    raise NoAnswer(f"the server at {client.url} is shutting down")
