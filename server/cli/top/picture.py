"""The picture: lines of text for one event of the engine and what came before it."""

from __future__ import annotations

from typing import Any

from server.cli.client.plain_text import without_controls
from server.cli.top.history import History

_BARS = "▁▂▃▄▅▆▇█"
_SHADES = {"shared": "█", "active": "▓", "cached": "▒", "free": "·"}
_LABEL_WIDTH = 10
_COLUMNS = "{:>4}  {:<7}  {:>7}  {:>8}  {:>6}  {:>6}  {:>5}  {:>8}  {:<12}  {}"
_HEADINGS = ("slot", "state", "prompt", "computed", "cached", "output", "pages", "age", "answer", "request")


def draw(event: dict[str, Any], history: History, *, width: int, height: int, where: str) -> list[str]:
    """At most `height` lines of at most `width` characters.

    Args:
        event: the last one of `GET /engine/events`, which `history` has taken already.
        where: the server's address, for the first line.
    """
    pages, queries = event["pages"], event["prefix_cache_queries"]
    found = f"{event['prefix_cache_hits'] / queries:.0%} of {queries:,} prompt tokens" if queries else "nothing asked"
    step = "none yet" if history.step_ms is None else f"{history.step_ms:.1f} ms, {history.mean_rows:.1f} requests"
    rate = f"{history.generation_rate:,.1f} generated, {history.prompt_rate:,.1f} of prompts"
    lines = [
        f"Eagre at {where}: {event['model']} is {event['state']}",
        "",
        _labelled("tokens/s", f"{rate}  {sparkline(list(history.rates), width - 60)}"),
        _labelled(
            "requests",
            f"{event['num_running']} of {event['num_slots']} run, {event['num_waiting']} wait, "
            f"{event['num_preemptions']:,} preempted so far",
        ),
        _labelled("steps", f"{step}; {event['num_steps']:,} so far; device idle {event['device_idle_fraction']:.1%}"),
        _labelled("prefixes", f"{found} were remembered"),
        _labelled(
            "pages",
            f"{pages['active']:,} in use ({pages['shared']:,} shared), {pages['cached']:,} remembered, "
            f"{pages['free']:,} free; {pages['page_size']} tokens each",
        ),
        _labelled("", page_bar(pages, max(10, width - _LABEL_WIDTH - 1))),
        "",
        _COLUMNS.format(*_HEADINGS),
        *(_request_line(request) for request in event["slots"]),
        *(_request_line(request) for request in event["queue"]),
    ]
    if len(lines) > height:
        lines[height - 1 :] = [f"… and {len(lines) - height + 1} more requests"]
    return [without_controls(line).replace("\n", " ")[:width].rstrip() for line in lines]


def sparkline(values: list[float], width: int) -> str:
    """The last values as bars of eight heights; the highest of them is the full one."""
    shown = values[-max(width, 0) :] if width > 0 else []
    most = max(shown, default=0.0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1)) if most else 0] for value in shown)


def page_bar(pages: dict[str, Any], width: int) -> str:
    """All pages as one bar; what there is of a kind has at least one character."""
    counts = {
        "shared": pages["shared"],
        "active": pages["active"] - pages["shared"],
        "cached": pages["cached"],
    }
    bar = ""
    for kind, count in counts.items():
        share = round(count / pages["total"] * width) if pages["total"] else 0
        bar += _SHADES[kind] * max(share, 1 if count > 0 else 0)
    return bar[:width].ljust(width, _SHADES["free"])


def _labelled(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}} {text}"


def _request_line(request: dict[str, Any]) -> str:
    slot, prompt = request["slot"], request["prompt"]
    progress = min(1.0, request["computed"] / prompt) if prompt else 1.0
    age = request["age_ms"] / 1000
    state = request["state"]
    told = f"prompt {progress:.0%}" if state == "prompt" else f"{request['output'] / age:.1f}/s" if age > 0 else ""
    return _COLUMNS.format(
        slot if slot >= 0 else "-", state, prompt, min(request["computed"], prompt), request["cached"],
        request["output"], request["pages"], f"{age:.1f} s", "" if state == "waiting" else told,
        request["id"] or "(of another key)",
    )  # fmt: skip
