"""One view of an engine for the terminal: figures, a bar of the cache's pages, and a table of the requests."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from server.cli.top.history import History
from server.startup.plain_text import without_controls

_BARS = "▁▂▃▄▅▆▇█"
_PAGES = {"shared": ("█", "magenta"), "active": ("▓", "green"), "cached": ("▒", "cyan"), "free": ("·", "dim")}
_STATES = {"prompt": "yellow", "answer": "green"}
_LABEL_WIDTH = 11
_WIDTHS = {
    "slot": 4, "state": 7, "prompt": 7, "computed": 8, "cached": 6, "output": 6, "pages": 5, "age": 8, "answer": 11,
}  # fmt: skip
_LEFT_ALIGNED = ("state", "answer")
_MIN_TABLE_WIDTH = sum(_WIDTHS.values()) + 2 * len(_WIDTHS) + 20  # a narrower terminal cuts it off
_NUM_OTHER_LINES = 10  # above the first request


def draw(event: dict[str, Any], history: History, *, width: int, height: int | None, where: str) -> Group:
    """The view as a renderable of at most `height` lines; None shows all requests.

    `event` is the last one of `GET /engine/events`, `where` the server's address for the first line.
    """
    pages, queries = event["pages"], event["prefix_cache_queries"]
    hits = f"{event['prefix_cache_hits'] / queries:.0%} of {queries:,} prompt tokens" if queries else "none yet"
    step = "none yet" if history.step_ms is None else f"{history.step_ms:.1f} ms, {history.mean_rows:.1f} requests"
    rate = f"{history.generation_rate:,.1f} generated, {history.prompt_rate:,.1f} of prompts"
    lines = [
        Text(f"Eagre at {where}: {without_controls(event['model'])} is {event['state']}".replace("\n", " "), "bold"),
        Text(),
        _labelled("tokens/s", f"{rate}  ").append(sparkline(list(history.rates), width - 60), "green"),
        _labelled(
            "requests",
            f"{event['num_running']} of {event['num_slots']} running, {event['num_waiting']} waiting, "
            f"{event['num_preemptions']:,} preempted so far",
        ),
        _labelled("steps", f"{step}; {event['num_steps']:,} so far; device idle {event['device_idle_fraction']:.1%}"),
        _labelled("cache hits", hits),
        _labelled(
            "pages",
            f"{pages['active']:,} in use ({pages['shared']:,} shared), {pages['cached']:,} cached, "
            f"{pages['free']:,} free; {pages['page_size']} tokens each",
        ),
        _labelled("", "").append(page_bar(pages, max(10, width - _LABEL_WIDTH))),
        Text(),
    ]
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    requests = [*event["slots"], *event["queue"]]
    room = len(requests) if height is None else max(0, height - _NUM_OTHER_LINES)
    if len(requests) <= room:
        return Group(*lines, _table(requests, width))
    shown = max(0, room - 1)
    return Group(*lines, _table(requests[:shown], width), Text(f"… and {len(requests) - shown} more requests"))


def sparkline(values: list[float], width: int) -> str:
    """The last values as bars of eight heights; the highest of them is the full one."""
    shown = values[-max(width, 0) :] if width > 0 else []
    most = max(shown, default=0.0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1)) if most else 0] for value in shown)


def page_bar(pages: dict[str, Any], width: int) -> Text:
    """All pages as one bar; each kind of which there are pages has at least one character."""
    counts = {"shared": pages["shared"], "active": pages["active"] - pages["shared"], "cached": pages["cached"]}
    bar = Text()
    for kind, count in counts.items():
        share = round(count / pages["total"] * width) if pages["total"] else 0
        shade, style = _PAGES[kind]
        bar.append(shade * min(max(share, 1 if count > 0 else 0), width - len(bar)), style)
    shade, style = _PAGES["free"]
    return bar.append(shade * (width - len(bar)), style)


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label:<{_LABEL_WIDTH}}", "dim"), text)


def _table(requests: list[dict[str, Any]], width: int) -> Table:
    table = Table(
        box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), width=max(width, _MIN_TABLE_WIDTH)
    )
    for name, column in _WIDTHS.items():
        table.add_column(name, justify="left" if name in _LEFT_ALIGNED else "right", width=column, no_wrap=True)
    table.add_column("request", ratio=1, no_wrap=True, overflow="crop")
    for request in requests:
        slot, prompt, state = request["slot"], request["prompt"], request["state"]
        progress = min(1.0, request["computed"] / prompt) if prompt else 1.0
        age = request["age_ms"] / 1000
        rate = f"{request['output'] / age:.1f}/s" if age > 0 else ""
        cells = (
            slot if slot >= 0 else "-", Text(state, _STATES.get(state, "")), prompt, min(request["computed"], prompt),
            request["cached"], request["output"], request["pages"], f"{age:.1f} s",
            "" if state == "waiting" else f"prompt {progress:.0%}" if state == "prompt" else rate,
            Text(without_controls(request["id"] or "(of another key)").replace("\n", " ")),
        )  # fmt: skip
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells))
    return table
