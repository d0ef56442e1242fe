"""KV offload: the folder that keeps the pages of an engine's prefix cache, and the peers with which it shares them."""

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

from cache.pool import PagePool
from engine.interface.address import HostAddress
from engine.interface.config import EngineConfig
from engine.interface.errors import ModelError
from engine.interface.types import KVOffloadStats
from engine.kv_transfer.disk import DiskConnector
from engine.kv_transfer.fingerprint import ModelFiles, fingerprint
from engine.kv_transfer.kv_connector import KVConnector, PageDevice
from engine.kv_transfer.page_folder import PageFolder
from engine.kv_transfer.page_server import PageServer
from engine.kv_transfer.peers import Peer, PeerConnector
from engine.kv_transfer.transfers import PageTransfers


class KVOffload:
    """Opens the configured folder for the weights that the engine computes with."""

    def __init__(
        self, config: EngineConfig, pool: PagePool, device: PageDevice, files: ModelFiles, parts: Sequence[str]
    ) -> None:
        """Starts at once to look for pages in the folder of `config`; pages depend on `files` and `parts`.

        Raises ValueError: the folder is in the home of an unknown user, or the address for peers is taken or invalid.
        """
        assert config.prefix_cache_dir is not None
        try:
            self._folder = Path(config.prefix_cache_dir).expanduser()
        except RuntimeError as error:
            raise ValueError(f"prefix_cache_dir is {config.prefix_cache_dir!r}: {error}") from error
        self.transfers = PageTransfers(pool, device)
        self.files = files  # of the weights that were read last
        self._opened: ModelFiles | None = None
        self._config = config
        self._parts = parts
        self._page_bytes = device.page_bytes
        self._connector: DiskConnector | None = None
        self._server: PageServer | None = None
        self._peers: tuple[Peer, ...] = ()
        self._lock = threading.Lock()  # of the server and the peers
        self._is_closed = False
        try:
            self._listen()
            self.transfers.start()
            self.open()
        except BaseException:
            self.close(0.0)
            raise

    def open(self) -> None:
        """Switches to the pages of the weights that were read last."""
        files, folder = self.files, self._folder
        self._opened = files

        def make() -> KVConnector:
            pages = PageFolder(folder, self._config.prefix_cache_bytes)
            key = fingerprint(files, self._parts, folder)
            kept = self._connector = DiskConnector(pages, key, self._page_bytes)
            return self._share(kept, key)

        self.transfers.open(make)

    def open_if_changed(self) -> None:
        """As `open`, unless the weights were read again from the same files, whose pages are open already."""
        if self.files == self._opened and self.transfers.connector is not None:
            self.transfers.cancel_all()
        else:
            self.open()

    def start(self) -> None:
        """Starts the threads, if they do not run."""
        self._is_closed = False
        self._listen()
        self.transfers.start()

    def close(self, seconds: float) -> None:
        """Ends the threads and connections after storing pages for so many seconds; `start` may start them again."""
        self.transfers.close(seconds)
        with self._lock:
            self._is_closed = True
            server, self._server = self._server, None
            peers, self._peers = self._peers, ()
        if server is not None:
            server.close()
        _leave(peers)

    def _listen(self) -> None:
        """Starts the server for peers; raises ValueError if the address is taken or invalid."""
        if self._config.prefix_cache_listen is None or self._server is not None:
            return
        address = HostAddress.parse(self._config.prefix_cache_listen)
        try:
            self._server = PageServer(address.host, address.port, self._config.prefix_cache_key or "")
        except OSError as error:
            raise ValueError(f"prefix_cache_listen is {self._config.prefix_cache_listen!r}: {error}") from error

    def _share(self, kept: DiskConnector, key: str) -> KVConnector:
        """The connector of the folder and of the peers; the server offers the folder's pages."""
        with contextlib.ExitStack() as stack, self._lock:
            before, self._peers = self._peers, ()
            stack.callback(_leave, before)
            if self._server is not None:
                self._server.offer(kept, key, self._page_bytes)
            for text in () if self._is_closed else self._config.prefix_cache_peers:
                secret = self._config.prefix_cache_key or ""
                # One by one: where the system gives no thread for one of them, `close` leaves those before it.
                self._peers += (Peer(HostAddress.parse(text), secret, key, self._page_bytes),)
            peers = self._peers
        return PeerConnector(kept, peers) if peers else kept

    def figures(self, page_size: int) -> KVOffloadStats:
        """Counters and gauges; any thread may call it."""
        transfers, connector = self.transfers, self._connector
        return KVOffloadStats(
            num_imported_tokens=transfers.num_read_of_first * page_size,
            num_imported_bytes=transfers.num_read * self._page_bytes,
            num_exported_bytes=transfers.num_stored * self._page_bytes,
            num_damaged_pages=(0 if connector is None else connector.num_damaged)
            + sum(peer.num_damaged for peer in self._peers),
            num_kept_bytes=0 if connector is None else connector.num_bytes,
        )


def _leave(peers: Sequence[Peer]) -> None:
    for peer in peers:
        peer.close()


def files_of(path: Path) -> ModelFiles:
    """The model's files; raises ModelError if one is missing."""
    try:
        return ModelFiles(path)
    except OSError as error:
        raise ModelError(f"{path}: {error}") from error
