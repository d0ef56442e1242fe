"""For whom the running task works, as far as tenants are kept apart by budgets and queues.

It belongs to the context of a task, and tasks that this one starts inherit it. So whoever takes a share or waits for a
turn, deep below the handler of a request, need not be told whose it is.
"""

from __future__ import annotations

from contextvars import ContextVar

NOBODY = ""  # no tenant in particular: the server itself, or all clients where none is told from the others

_caller: ContextVar[str] = ContextVar("caller", default=NOBODY)


def work_for(name: str) -> None:
    """From now on the running task works for the tenant of this name, or for NOBODY."""
    _caller.set(name)


def caller() -> str:
    """The name of the tenant for whom the running task works, or NOBODY."""
    return _caller.get()
