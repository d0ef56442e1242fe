"""Computes the requests of all open batches, behind all other requests, over restarts of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from engine.interface.log_interval import LogInterval
from server.admission.keyring import NOBODY, KeyRing, Tenant, work_for
from server.api.batches.batch_lines import NO_TOKENS, LineAnswer, LineError, LineRequest, error_line
from server.api.batches.batch_objects import BatchStatus
from server.http.batches.input_validation import validate
from server.http.batches.line_execution import Postponed, execute
from server.http.batches.open_batch import LONGEST_PAUSE_S, OpenBatch
from server.protocol.errors import ApiError
from server.serving.served_models import Phase, ServedModels
from server.startup.logs import log
from server.storage.batch_table import BatchLine, TokenCounts
from server.storage.database import StoreError
from server.storage.record_store import Tables

MAX_BESIDE_OTHERS = 1  # requests of batches that run while a client waits for an answer of its own
MAX_BYTES = 8 << 20  # of the lines that run at once, unless one alone has more
MAX_ATTEMPTS = 10  # computations of one request that ended with the process, before it is given up
_POLL_S = 0.25  # between two looks at whether clients wait for answers, or a model is ready, while batches wait
_SWEEP_S = 60.0  # between two looks at what has expired, while there are no batches
_RETRY_S = 1.0  # after a failure of the store
_FAILED_AT_ONCE = 200  # requests of an ended batch in one transaction

Execute: TypeAlias = Callable[[ServedModels, Tenant, LineRequest], Awaitable[LineAnswer]]


class BatchRunner:
    """Validates batches, computes their requests and ends them. Its methods are called in the asyncio loop."""

    def __init__(
        self, served: ServedModels, keys: KeyRing, *, execute: Execute = execute, clock: Callable[[], float] = time.time
    ) -> None:
        """Args:
        execute: computes one request; raises Postponed.
        clock: seconds since 1970.
        """
        self._served = served
        self._store = served.store
        self._keys = keys
        self._execute = execute
        self.clock = clock
        self._open: dict[int, OpenBatch] = {}
        self._is_stale = True  # the store has changes that `_open` lacks
        self._changed = asyncio.Event()
        self._num_running = 0
        self._num_bytes = 0  # of the lines that run
        self._num_turns = 0
        self._validated: dict[str, int] = {}  # the turns of owners whose batches are being validated, or wait for that
        self._swept_at = 0.0
        self._running: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._log_interval = LogInterval()

    def start(self) -> None:
        """Begins with the batches that an earlier process has left, once a model is ready."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends what runs; it is computed again by the next process. Idempotent."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def notice(self) -> None:
        """A batch was created or cancelled."""
        self._is_stale = True
        self._changed.set()

    # ---------------------------------------------------------------- the loop

    async def _run(self) -> None:
        work_for(NOBODY)
        draining = asyncio.ensure_future(self._served.draining.wait())
        try:
            while not draining.done():
                self._changed.clear()
                try:
                    await self._look()
                except Exception as error:  # noqa: BLE001 - batches go on as soon as they can
                    self._log_failure(error)
                    self._is_stale = True
                    await asyncio.sleep(_RETRY_S)
                changed = asyncio.ensure_future(self._changed.wait())
                seconds = _POLL_S if self._open or self._is_stale else _SWEEP_S
                try:
                    await asyncio.wait((changed, draining), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        finally:
            draining.cancel()
            tasks = [task for batch in self._open.values() for task in batch.tasks()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*self._background, return_exceptions=True)

    async def _look(self) -> None:
        """Does what can be done now."""
        if self._served.phase is not Phase.READY:
            return
        now = self.clock()
        if now - self._swept_at >= _SWEEP_S:
            self._swept_at = now
            await self._store.run(lambda tables: tables.files.mark_expired(int(now)))
            await self._store.run(lambda tables: tables.batches.drop_unused_files())
        if self._is_stale:
            self._is_stale = False
            await self._read_batches()
        for batch in tuple(self._open.values()):
            self._advance(batch, now)
        self._begin_validation()
        await self._begin_lines()
        figures = self._served.batch_figures
        figures.num_open, figures.num_running = len(self._open), self._num_running
        figures.num_waiting = sum(batch.num_waiting for batch in self._open.values())

    async def _read_batches(self) -> None:
        stored = await self._store.run_read(lambda tables: tables.batches.open_batches())
        for batch in stored:
            known = self._open.get(batch.number)
            if known is None:
                self._open[batch.number] = OpenBatch(batch)
            else:
                known.stored, known.num_recorded = batch, 0

    def _advance(self, batch: OpenBatch, now: float) -> None:
        """Begins what a batch needs besides its requests: to be validated, or to be ended."""
        if batch.is_busy:
            return
        if batch.stored.status == BatchStatus.CANCELLING:
            message = "The batch was cancelled before this request was executed."
            batch.work = self._spawn(self._give_up(batch, BatchStatus.CANCELLED, "batch_cancelled", message))
        elif now >= batch.stored.expires:
            message = "This request could not be executed before the completion window expired."
            batch.work = self._spawn(self._give_up(batch, BatchStatus.EXPIRED, "batch_expired", message))
        elif batch.is_done:
            batch.work = self._spawn(self._complete(batch))

    def _begin_validation(self) -> None:
        """Validates one batch at a time: owners take turns, and the batches of one are validated in their order."""
        validating = [batch for batch in self._open.values() if batch.stored.status == BatchStatus.VALIDATING]
        if not validating or any(batch.is_busy for batch in validating):
            return
        waiting = {batch.stored.owner for batch in validating}
        self._validated = {owner: turn for owner, turn in self._validated.items() if owner in waiting}
        batch = min(
            validating, key=lambda batch: (self._validated.get(batch.stored.owner, 0), batch.stored.number)
        )  # fmt: skip
        self._num_turns += 1
        self._validated[batch.stored.owner] = self._num_turns
        batch.work = self._spawn(self._validate(batch))

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - it is begun anew
                self._log_failure(error)
                await asyncio.sleep(_RETRY_S)
            finally:
                self.notice()

        return asyncio.create_task(run())

    async def _validate(self, batch: OpenBatch) -> None:
        scanner = await validate(self._served, batch.stored, is_shared=self._is_shared(batch.stored.owner))
        if scanner is None:
            return
        number, now = batch.stored.number, int(self.clock())
        if scanner.errors:
            errors = {"object": "list", "data": scanner.errors}
            await self._end(batch, BatchStatus.FAILED, {"errors": errors, "failed_at": now})
            return
        fields = {"in_progress_at": now, "model": scanner.model}
        batch.stored = await self._store.run(
            lambda tables: tables.batches.change(
                number, BatchStatus.IN_PROGRESS, fields, only_if=(BatchStatus.VALIDATING,)
            )
        )

    async def _complete(self, batch: OpenBatch) -> None:
        now = int(self.clock())
        await self._end(batch, BatchStatus.COMPLETED, {"finalizing_at": now, "completed_at": now})

    async def _give_up(self, batch: OpenBatch, status: BatchStatus, code: str, message: str) -> None:
        """Ends a batch early: its requests without an answer get an error."""
        tasks = tuple(batch.lines_running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        number = batch.stored.number
        if batch.stored.status != BatchStatus.VALIDATING:

            def fail(custom_id: str) -> bytes:
                return error_line(custom_id, code, message)

            while await self._store.run(lambda tables: tables.batches.fail_lines(number, _FAILED_AT_ONCE, fail)):
                pass
        await self._end(batch, status, {f"{status}_at": int(self.clock())})

    async def _end(self, batch: OpenBatch, status: BatchStatus, fields: dict[str, object]) -> None:
        number, now = batch.stored.number, int(self.clock())
        ended = await self._store.run(lambda tables: tables.batches.end(number, status, fields, now))
        self._open.pop(number, None)
        log.info(
            "batch_ended", batch=ended.id, status=ended.status, requests=ended.total, completed=ended.completed,
            failed=ended.failed,
        )  # fmt: skip

    # ---------------------------------------------------------------- requests

    async def _begin_lines(self) -> None:
        """Begins as many requests as may run now."""
        is_others_turn = self._served.requests.num_interactive > 0
        most = MAX_BESIDE_OTHERS if is_others_turn else self._served.settings.max_batch_requests
        while self._num_running < most and not self._served.draining.is_set():
            batch = self._choose(is_others_turn=is_others_turn)
            if batch is None:
                return
            line = await batch.next_line(self._store)
            if line is None:
                if batch.is_done:
                    self._changed.set()  # it ends in the next round
                continue
            if self._num_running and self._num_bytes + line.size > MAX_BYTES:
                batch.leave(line)
                return
            self._num_turns += 1
            batch.last_turn = self._num_turns
            self._num_running += 1
            self._num_bytes += line.size
            batch.lines_running[line.number] = asyncio.create_task(self._work(batch, line))

    def _choose(self, *, is_others_turn: bool) -> OpenBatch | None:
        """The batch whose request is next: owners take turns, and the batches of one end in their order."""
        now, first = asyncio.get_running_loop().time(), dict[str, OpenBatch]()
        last_turns: dict[str, int] = {}
        for batch in self._open.values():
            owner = batch.stored.owner
            last_turns[owner] = max(last_turns.get(owner, 0), batch.last_turn)
            may_run = batch.has_lines and batch.retry_at <= now and self._may_run(batch, is_others_turn)
            if may_run and owner not in first:
                first[owner] = batch
        # Where models take turns in memory, the one that is there goes on.
        return min(
            first.values(),
            key=lambda batch: (not self._is_in_memory(batch), last_turns[batch.stored.owner], batch.stored.number),
            default=None,
        )

    def _may_run(self, batch: OpenBatch, is_others_turn: bool) -> bool:
        if self._keys.owner_of(batch.stored.owner) is None:
            return False  # its key is not in force; it waits until it expires
        if not self._store.has_room_for_files(batch.stored.owner, is_shared=self._is_shared(batch.stored.owner)):
            return False  # its answers need room; its owner deletes files
        return not is_others_turn or self._is_in_memory(batch)

    def _is_shared(self, owner: str) -> bool:
        """Whether other keys need room for files too."""
        tenant = self._keys.owner_of(owner)
        return tenant is None or self._keys.caller_of(tenant) != NOBODY

    def _is_in_memory(self, batch: OpenBatch) -> bool:
        try:
            return self._served.find(batch.stored.fields.get("model")).is_in_memory
        except ApiError:
            return True  # its requests fail without any model

    async def _work(self, batch: OpenBatch, line: BatchLine) -> None:
        """Computes one request and records its answer."""
        tenant = self._keys.owner_of(batch.stored.owner)
        try:
            if tenant is None:
                raise Postponed(_RETRY_S, "the key is not in force")
            caller = self._keys.caller_of(tenant)
            tenant = tenant.in_background()
            work_for(caller and tenant.name)
            await self._record(batch, line, *await self._answer(batch, line, tenant))
            self._served.batch_figures.num_answered += 1
            batch.note_success()
        except Postponed as error:
            log.debug("batch_request_postponed", batch=batch.stored.id, line=line.number, reason=str(error))
            batch.put_back(line, error.seconds)
            self._uncount(batch, line)
        except StoreError as error:
            self._log_failure(error)
            batch.put_back(line, _RETRY_S)
        except asyncio.CancelledError:
            self._uncount(batch, line)
            raise
        except Exception:  # noqa: BLE001 - other requests go on
            log.exception("batch_request_failed")
            batch.put_back(line, LONGEST_PAUSE_S)
        finally:
            self._num_running -= 1
            self._num_bytes -= line.size
            batch.lines_running.pop(line.number, None)
            self._changed.set()

    async def _answer(self, batch: OpenBatch, line: BatchLine, tenant: Tenant) -> tuple[bytes, TokenCounts, bool]:
        """The answer as a line, what it has used, and whether it is an error."""
        stored = batch.stored
        if line.attempts >= MAX_ATTEMPTS:
            message = f"The server ended {line.attempts} times while it executed this request."
            return error_line(line.custom_id, "server_error", message), NO_TOKENS, True

        def read() -> LineRequest | LineError:
            try:
                return LineRequest.parse(content)
            except LineError as error:
                return error

        def begin(tables: Tables) -> bytes:
            tables.batches.count_attempt(stored.number, line.number)
            return tables.files.read_range(stored.input, line.start, line.size)

        content = await self._store.run(begin)
        request = await self._served.workers.run(read)
        if isinstance(request, LineError):  # it was valid before; the file is damaged
            return error_line(line.custom_id, request.code, request.message), NO_TOKENS, True
        answer = await self._execute(self._served, tenant, request)
        encoded = await self._served.workers.run(answer.to_line, line.custom_id)
        return encoded, answer.usage, answer.has_failed

    async def _record(
        self, batch: OpenBatch, line: BatchLine, value: bytes, usage: TokenCounts, has_failed: bool
    ) -> None:
        """Writes the answer, again and again where the store cannot be written."""
        number, seconds = batch.stored.number, _RETRY_S
        while True:
            try:
                is_new = await self._store.run(
                    lambda tables: tables.batches.record(number, line.number, value, usage, has_failed=has_failed)
                )
            except StoreError as error:
                self._log_failure(error)
                await asyncio.sleep(seconds)
                seconds = min(2 * seconds, LONGEST_PAUSE_S)
            else:
                batch.num_recorded += is_new
                return

    def _uncount(self, batch: OpenBatch, line: BatchLine) -> None:
        """Notes that the computation of a request was ended in good order."""
        number = batch.stored.number
        task = asyncio.ensure_future(
            self._store.run(lambda tables: tables.batches.count_attempt(number, line.number, -1))
        )
        self._background.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            task.exception()  # asyncio would complain where nobody looks

    def _log_failure(self, error: Exception) -> None:
        """Logs why batches have to wait: once a minute, with a traceback unless it is the store."""
        if self._log_interval.is_due():
            log.error("batches_wait", reason=str(error), exc_info=not isinstance(error, StoreError))


BATCH_RUNNER = web.AppKey("batch_runner", BatchRunner)


async def run_batches(app: web.Application) -> AsyncIterator[None]:
    """Computes batches while the application runs (a `cleanup_ctx`)."""
    runner = app[BATCH_RUNNER]
    runner.start()
    yield
    await runner.stop()
