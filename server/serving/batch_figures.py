"""Figures of the batches of a server, for its metrics."""

from collections.abc import Sequence
from dataclasses import dataclass

from server.telemetry.metrics_page import ProcessGauge


@dataclass(slots=True)
class BatchFigures:
    """Counts of open batches and of their requests."""

    num_open: int = 0  # batches that have not ended
    num_waiting: int = 0  # requests of theirs without an answer, those that run included
    num_running: int = 0
    num_answered: int = 0  # since the start

    def gauges(self) -> Sequence[ProcessGauge]:
        """The gauges of the metrics page."""
        return (
            ProcessGauge("eagre_batches_open", "Batches that have not ended", lambda: self.num_open),
            ProcessGauge(
                "eagre_batch_requests_waiting", "Requests of batches without an answer", lambda: self.num_waiting
            ),
            ProcessGauge("eagre_batch_requests_running", "Of these, those that run", lambda: self.num_running),
            ProcessGauge(
                "eagre_batch_requests_answered", "Requests of batches answered so far", lambda: self.num_answered
            ),
        )
