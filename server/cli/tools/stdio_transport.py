"""The way to an MCP server that is a process: lines of JSON on its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import orjson

from server.cli.tools.transport import MAX_ANSWER_BYTES, McpError, SessionEnded, messages_of

END_S = 2.0  # that a process has to end by itself, and again after SIGTERM
MAX_LAST_BYTES = 2048  # of the process's errors
# What a process gets of the environment; the rest may hold keys that are not meant for it.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")


class StdioTransport:
    """Starts the process with the first message, without a shell, and ends it on `close`.

    It has a session of its own, so that Ctrl-C, which stops a call, does not end it.
    """

    def __init__(
        self, name: str, arguments: tuple[str, ...], environment: Mapping[str, str], folder: str | None
    ) -> None:
        self._name = name
        self._arguments = arguments
        self._environment = {key: os.environ[key] for key in INHERITED if key in os.environ} | dict(environment)
        self._folder = None if folder is None else os.path.expanduser(folder)
        self._process: asyncio.subprocess.Process | None = None
        self._errors: asyncio.Task[None] | None = None
        self._last_errors = b""

    async def open(self) -> None:
        await self.close()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=self._folder, env=self._environment,
                start_new_session=True, limit=MAX_ANSWER_BYTES,
            )  # fmt: skip
        except OSError as error:
            raise McpError(f"{self._name} cannot be started: {error.strerror or error}") from error
        self._last_errors = b""
        self._errors = asyncio.create_task(self._read_errors(self._process))

    def set_protocol(self, version: str) -> None:
        pass  # only HTTP repeats it

    async def request(self, message: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        await self.notify(message)
        output = self._running().stdout
        assert output is not None
        while True:
            try:
                line = await output.readline()
            except ValueError as error:
                raise McpError(f"{self._name} answers with more than {MAX_ANSWER_BYTES} bytes, the limit") from error
            if not line:
                raise await self._ended()
            for found in messages_of(line):
                yield found

    async def notify(self, message: dict[str, Any]) -> None:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(orjson.dumps(message) + b"\n")
            await process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise SessionEnded(f"{self._name} has ended") from error

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        if process.returncode is None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    await asyncio.wait_for(process.wait(), END_S)
                    break
                except TimeoutError:
                    _send(number, process)
            await process.wait()
            _send(signal.SIGKILL, process)  # what it has started and left
        with contextlib.suppress(TimeoutError, ValueError):
            async with asyncio.timeout(END_S):
                while await process.stdout.read(1 << 16):  # to its end, which closes the pipe
                    pass
        if self._errors is not None:
            self._errors.cancel()
            await asyncio.gather(self._errors, return_exceptions=True)
            self._errors = None

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            raise SessionEnded(f"{self._name} has ended")
        return self._process

    async def _ended(self) -> McpError:
        """What is known of a process that has closed its output."""
        if self._errors is not None:
            await asyncio.wait([self._errors], timeout=END_S)
        lines = self._last_errors.decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        await self.close()
        return McpError(f"{self._name} has ended{': ' if last else ''}{last}")

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        """Reads what the process says of itself, which would fill its pipe; the end of it is for an error."""
        assert process.stderr is not None
        while part := await process.stderr.read(MAX_LAST_BYTES):
            self._last_errors = (self._last_errors + part)[-MAX_LAST_BYTES:]


def _send(number: signal.Signals, process: asyncio.subprocess.Process) -> None:
    """Sends a signal to the process and to what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
