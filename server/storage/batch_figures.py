"""Figures of the batches of a server, for its metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class BatchFigures:
    """Counts of open batches and of their requests."""

    num_open: int = 0  # batches that have not ended
    num_waiting: int = 0  # requests of theirs without an answer, those that run included
    num_running: int = 0
    num_answered: int = 0  # since the start
