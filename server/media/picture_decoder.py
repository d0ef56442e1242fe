"""Decodes pictures in a worker process, which is killed where a picture takes too long."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from engine.interface.python_process import python_command, same_modules
from engine.interface.types import QueueFull
from server.admission.fair_pool import FairPool
from server.admission.keyring import caller
from server.media.tiling import Sizing

START = "from server.media.decode_worker import run; run()"
START_SECONDS = 60.0  # that a process may take until it is ready; usually it takes a quarter of one
SECONDS = 5.0  # of processor time that a picture may take
WALL_SECONDS = 60.0  # that it may take on a busy machine
IDLE_SECONDS = 30.0  # after which a process without a picture ends
_CANNOT_START = "no process can be started that decodes the picture; try again later"
_BUSY = "the machine is too busy to decode the picture now; try again later"


class UndecodablePicture(ValueError):
    """Bytes that are no picture, or one beyond a limit; the message is the end of a sentence about them."""


class DecodedTiles(NamedTuple):
    """The tiles of one picture, row by row, with the whole picture as the last one, or before its crops."""

    pixels: Sequence[np.ndarray]  # uint8[height, width, 3]
    num_rows: int  # 0: the picture was not cut, and there is one tile; of a picture of any size, rows of squares
    num_columns: int


class PictureDecoder:
    """Decodes one picture after another, of all tenants by turns, in a process that is started with the first one."""

    def __init__(self) -> None:
        self._threads = FairPool(1, "eagre-pictures")
        self._worker: _Worker | None = None
        self._idle_timer: threading.Timer | None = None  # of the process since its last picture
        self._num_decoded = 0
        self._lock = threading.Lock()
        self._is_closed = False

    async def decode(self, content: bytes, sizing: Sizing, *, is_base64: bool) -> DecodedTiles:
        """The tiles of a picture of a PNG, JPEG, WebP or GIF file.

        Raises:
            UndecodablePicture: the content is no such file, or is beyond a limit.
            QueueFull: the machine is too busy, or no process can be started.
        """
        job = json.dumps([is_base64, type(sizing).__name__, sizing, SECONDS]).encode()
        try:
            decoding = self._threads.submit(caller(), partial(self._decode, job, content))
        except RuntimeError as error:  # it is closed, or the machine starts no thread
            raise QueueFull(_CANNOT_START) from error
        return await asyncio.wrap_future(decoding)

    def close(self) -> None:
        """Ends the process; a picture that is being decoded fails."""
        with self._lock:
            self._is_closed = True
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._end()
        self._threads.close()

    def _decode(self, job: bytes, content: bytes) -> DecodedTiles:
        with self._lock:
            if self._is_closed:
                raise QueueFull(_CANNOT_START)
            if self._idle_timer is not None:
                self._idle_timer.cancel()
                self._idle_timer = None  # one that has fired and waits for the lock would end the process otherwise
            if self._worker is not None and not self._worker.is_alive:
                self._end()
            worker = self._worker = self._worker or _Worker()
        try:
            return worker.decode(job, content)
        except UndecodablePicture:
            raise
        except BaseException:
            with self._lock:
                self._end()
            raise
        finally:
            with self._lock:
                if self._worker is not None:  # and so it is not closed
                    self._num_decoded += 1
                    self._idle_timer = threading.Timer(IDLE_SECONDS, self._end_idle, [self._num_decoded])
                    self._idle_timer.daemon = True
                    with suppress(RuntimeError):  # without a thread for it, the process stays until the next picture
                        self._idle_timer.start()

    def _end_idle(self, num_decoded: int) -> None:
        with self._lock:
            if self._idle_timer is not None and self._num_decoded == num_decoded:
                self._end()

    def _end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()


class _Worker:
    """A running `decode_worker` process; raises QueueFull if it cannot start now."""

    def __init__(self) -> None:
        try:
            ours, its = socket.socketpair()
        except OSError as error:
            raise QueueFull(f"{_CANNOT_START}: {error.strerror}") from error
        try:
            with its:
                self._process = subprocess.Popen(
                    python_command("-c", START, str(its.fileno())),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(its.fileno(),),
                    env=same_modules(),
                )
        except OSError as error:
            ours.close()
            raise QueueFull(f"{_CANNOT_START}: {error.strerror}") from error
        self._socket = Connection(ours.detach())
        self._finalizer = weakref.finalize(self, _end, self._process, self._socket)
        try:
            if not self._socket.poll(START_SECONDS):
                raise TimeoutError
            self._socket.recv_bytes()
        except (EOFError, OSError) as error:
            self.kill()
            raise QueueFull(_CANNOT_START) from error

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def decode(self, job: bytes, content: bytes) -> DecodedTiles:
        """The tiles; raises UndecodablePicture or QueueFull."""
        try:
            self._socket.send_bytes(job)
            self._socket.send_bytes(content)
            if not self._socket.poll(WALL_SECONDS):
                raise QueueFull(_BUSY)
            refusal, num_rows, num_columns, sizes = json.loads(self._socket.recv_bytes())
            pixels = self._socket.recv_bytes()
        except (EOFError, ConnectionError) as error:
            self._process.wait()
            raise PictureTooExpensive from error
        except OSError as error:  # such as one of a machine without memory for sockets
            raise QueueFull(_BUSY) from error
        if refusal is not None:
            raise UndecodablePicture(refusal)
        ends = np.cumsum([0, *(3 * width * height for width, height in sizes)]).tolist()
        tiles = [
            np.frombuffer(pixels, np.uint8, end - start, start).reshape(height, width, 3)
            for (width, height), start, end in zip(sizes, ends, ends[1:], strict=False)
        ]
        return DecodedTiles(tiles, num_rows, num_columns)

    def kill(self) -> None:
        """Ends it at once, and waits until it has ended."""
        self._finalizer()


class PictureTooExpensive(UndecodablePicture):
    """A picture that has ended the process by its time or its memory."""

    def __init__(self) -> None:
        super().__init__(f"takes more than {SECONDS:g} s of processor time, or too much memory, to decode")


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):
        connection.close()
