"""The listening sockets of a server: a port or a Unix socket, with or without TLS, and a port for metrics."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from aiohttp import web

from engine.interface.background import run_in_background
from server.admission import unix_socket
from server.admission.certificate import Certificate, CertificateError
from server.admission.keyring import KeyFileError, KeyRing
from server.http.app import build_app, build_metrics_app, read_keys
from server.http.transport.connections import GuardedRunner, GuardedServer
from server.serving.served_models import ServedModels
from server.startup.exposed_files import warn_of_exposed_files
from server.startup.logs import log
from server.startup.settings import ServerSettings

# Connections that may wait to be accepted, as far as the system allows. A Unix socket refuses those beyond it at once,
# so a router whose clients all come together would lose some of them there.
BACKLOG = 4096


class CannotListen(Exception):
    """A listening socket could not be opened; the message has the address and the reason."""


class Listeners:
    """The sockets of one server, with the keys and the certificate that SIGHUP reads again."""

    def __init__(
        self, settings: ServerSettings, keys: KeyRing, app: web.Application, metrics_app: web.Application | None
    ) -> None:
        """Reads the certificate, or raises CertificateError. `keys` are those of `app`."""
        self._settings = settings
        self._keys = keys
        warn_of_exposed_files(settings)
        self._certificate = (
            None
            if settings.ssl_certfile is None or settings.ssl_keyfile is None
            else Certificate(Path(settings.ssl_certfile), Path(settings.ssl_keyfile))
        )
        context = None if self._certificate is None else self._certificate.context
        self._runner = GuardedRunner(app, settings, context)
        self._metrics_runner = None if metrics_app is None else GuardedRunner(metrics_app, settings, context)
        self._is_socket_made = False

    @classmethod
    def of(cls, served: ServedModels) -> Listeners:
        """Makes the listeners of `served`; raises `KeyFileError` or `CertificateError` for an unusable file."""
        settings, keys = served.settings, read_keys(served.settings)
        metrics_app = None if settings.metrics_port is None else build_metrics_app(served)
        return cls(settings, keys, build_app(served, keys), metrics_app)

    async def open(self) -> None:
        """Raises `CannotListen` where an address is taken or invalid."""
        settings = self._settings
        await self._runner.setup()
        if (
            isinstance(self._runner.server, GuardedServer)
            and self._runner.server.places.limit < settings.max_connections
        ):
            log.warning(
                "few_open_files",
                max_connections=settings.max_connections,
                connections=self._runner.server.places.limit,
                detail="the limit of open files allows no more connections; raise it (ulimit -n)",
            )
        if settings.uds is not None:
            path = Path(settings.uds)
            try:
                listener = unix_socket.listen_at(path)
                self._is_socket_made = True
                await Site(self._runner, sock=listener).start()
            except OSError as error:
                raise CannotListen(f"cannot listen on {path}: {error.strerror or error}") from error
        else:
            await start_sites(self._runner, settings.hosts, settings.port)
        if self._metrics_runner is not None and settings.metrics_port is not None:
            await self._metrics_runner.setup()
            await start_sites(self._metrics_runner, settings.hosts, settings.metrics_port)

    async def close(self) -> None:
        """Stops listening and closes all connections."""
        await self._runner.cleanup()
        if self._metrics_runner is not None:
            await self._metrics_runner.cleanup()
        if self._is_socket_made and self._settings.uds is not None:
            unix_socket.remove(Path(self._settings.uds))

    async def reload(self) -> None:
        """Reads the file of keys and the certificate again. One that cannot be used is logged and ignored."""
        try:
            await _read(self._keys.reload)
            log.info("keys_reloaded", num_keys=self._keys.num_keys)
        except KeyFileError as error:
            log.error("keys_kept", reason=str(error))
        if self._certificate is None:
            return
        try:
            await _read(self._certificate.reload)
            log.info("certificate_reloaded")
        except CertificateError as error:
            log.error("certificate_kept", reason=str(error))

    @property
    def address(self) -> str:
        """The server's URL for a browser on this machine, or the path of its socket."""
        if self._settings.uds is not None:
            return f"unix:{self._settings.uds}"
        host, port = self._settings.hosts[0], self._runner.addresses[0][1]
        if host in ("0.0.0.0", "::"):
            host = "localhost"
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def welcome(self, what: str) -> str:
        """The line that says what is served and where."""
        address = self.address
        where = f" at {address}" if address.startswith("unix:") else f"; open {address}/ in a browser"
        metrics = self._metrics_runner
        return f"Eagre serves {what}{where}" + (
            "" if metrics is None else f"; metrics have port {metrics.addresses[0][1]}"
        )


async def _read(read: Callable[[], None]) -> None:
    """Reads files in a thread for which the end of the server does not wait: their disk may not answer."""
    await run_in_background(read, name="eagre-reload")


class Site(web.BaseSite):
    """A host and port, or a bound socket, where the runner's server accepts connections itself (`Acceptor`).

    The loop's server binds the sockets and closes them, and accepts at none of them.
    """

    def __init__(
        self, runner: GuardedRunner, host: str | None = None, port: int = 0, *, sock: socket.socket | None = None
    ) -> None:
        super().__init__(runner)
        assert isinstance(runner.server, GuardedServer)
        self._acceptor = runner.server.acceptor
        self._host = host
        self._port = port
        self._sock = sock
        self._listeners: list[socket.socket] = []

    @property
    def name(self) -> str:
        """The host and port, as in a URL."""
        host = self._host or ""
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    async def start(self) -> None:
        """Raises OSError or UnicodeError where the address is taken or invalid."""
        await super().start()
        loop = asyncio.get_running_loop()
        if self._sock is not None:
            server = await loop.create_server(asyncio.Protocol, sock=self._sock, start_serving=False)
        else:
            server = await loop.create_server(asyncio.Protocol, self._host, self._port, start_serving=False)
        self._server = server
        for bound in server.sockets:
            listener = socket.socket(fileno=os.dup(bound.fileno()))  # asyncio's own object has no `accept`
            listener.listen(BACKLOG)
            self._listeners.append(listener)
            self._acceptor.add(listener)

    async def stop(self) -> None:
        """Closes the sockets."""
        for listener in self._listeners:
            self._acceptor.remove(listener)
        await super().stop()


async def start_sites(runner: GuardedRunner, hosts: Sequence[str], port: int) -> None:
    """Listens at the same port of each address; raises `CannotListen` where one is taken or invalid."""
    for host in hosts:
        site = Site(runner, host, port)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            reason = getattr(error, "strerror", None) or error
            raise CannotListen(f"cannot listen on {site.name}: {reason}") from error
        port = port or runner.addresses[0][1]  # 0 picks a free one, which the others take too
