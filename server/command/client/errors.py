"""Why a command has nothing to show."""

from __future__ import annotations


class NoAnswer(RuntimeError):
    """There is no answer; the message tells the user why."""


class NoServer(NoAnswer):
    """No server listens at the address."""
