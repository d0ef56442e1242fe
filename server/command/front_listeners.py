"""Where a front listens: as a server does."""

from __future__ import annotations

from server.command.listeners import Listeners
from server.fronting.application import front_application, front_metrics_application, make_front_runner
from server.fronting.front import FRONT
from server.fronting.replicas import Replicas
from server.http.entry.guard import GUARD
from server.startup.settings import ServerSettings


class FrontListeners(Listeners):
    """The open doors of one front."""

    def __init__(self, replicas: Replicas, settings: ServerSettings) -> None:
        """Reads keys and certificate. Made within the context of the replicas.

        Raises:
            KeyFileError, CertificateError: one of them cannot be used.
        """
        app = front_application(replicas, settings)
        metrics = None if settings.metrics_port is None else make_front_runner(front_metrics_application(app))
        keys = app[GUARD].keys
        assert keys is not None
        self._take(settings, keys, make_front_runner(app), metrics)
        self.front = app[FRONT]
