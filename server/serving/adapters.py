"""The low-rank adapters of one served model: their names, and which of them are in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.interface.background import run_in_background
from engine.interface.errors import ModelError
from engine.interface.types import AdapterChoice, QueueFull
from server.protocol.errors import SERVER_ERROR, ApiError, without_folders
from server.startup.logs import log
from server.telemetry.metrics import AdapterUse

if TYPE_CHECKING:  # they bring JAX, which takes a second to import
    from engine.client import AdapterWeights, EngineClient

MOST_ADAPTERS = 1024  # that have names; few of them are in memory


class InSlot(NamedTuple):
    """Where an adapter is in memory, and the digest of its weights."""

    slot: int
    digest: str


@dataclass(eq=False)
class ServedAdapter:
    """One adapter, which clients choose by its name in the place of the model's."""

    name: str
    path: Path
    created: int  # seconds since 1970
    is_given: bool = False  # by the settings; else an operator has loaded it
    place: InSlot | None = None  # None: it is read from its folder when a request comes
    num_running: int = 0  # requests that use its slot
    num_waiting: int = 0  # requests that wait for it to be in memory
    used_at: float = 0.0
    is_leaving: bool = False  # another one gets its slot as soon as nothing uses it


class Adapters:
    """The adapters of a model. Where there are more than slots, the one that was used the longest ago makes room."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        created = int(time.time())
        self._given = paths
        self._by_name = {name: ServedAdapter(name, path, created, is_given=True) for name, path in paths.items()}
        self._engine: EngineClient | None = None
        self._free: list[int] = []
        self._num_slots = 0
        self._lock = asyncio.Lock()  # of changes of slots
        self._freed = asyncio.Event()
        self._removed: list[ServedAdapter] = []  # without a name, and still in use
        self._num_waiting = 0  # requests for adapters that are not in memory

    def open(self, engine: EngineClient, num_slots: int, loaded: Mapping[str, InSlot]) -> None:
        """Notes that the model is loaded, with some of the adapters in their slots."""
        self._engine, self._num_slots = engine, num_slots
        named = {name: place for name, place in loaded.items() if name in self._by_name}  # some were removed meanwhile
        for name, place in named.items():
            self._by_name[name].place = place
        taken = {place.slot for place in named.values()}
        self._free = [slot for slot in range(num_slots) if slot not in taken]

    def keep(self, before: Adapters) -> None:
        """Serves the adapters that were loaded at run time into the model whose place this one takes.

        Where the settings name another adapter than they did before, it counts.
        """
        for adapter in before.loaded_later:
            name = adapter.name
            if self._given.get(name) == before._given.get(name):
                self._by_name[name] = ServedAdapter(name, adapter.path, adapter.created)

    @property
    def loaded_later(self) -> Sequence[ServedAdapter]:
        """Those that an operator has loaded at run time."""
        return [adapter for adapter in self._by_name.values() if not adapter.is_given]

    @property
    def all(self) -> Sequence[ServedAdapter]:
        return tuple(self._by_name.values())

    def use_now(self) -> AdapterUse:
        """The adapters that requests use and wait for, for the metrics."""
        every = (*self._by_name.values(), *self._removed)

        def names(of: Iterable[ServedAdapter]) -> list[str]:
            return sorted({adapter.name for adapter in of})

        return AdapterUse(
            self._num_slots,
            running=names(adapter for adapter in every if adapter.num_running),
            waiting=names(adapter for adapter in every if adapter.num_waiting),
        )

    def digest(self, name: str) -> str:
        """Of the weights of an adapter that a request uses; empty where there is none in memory."""
        adapter = self._by_name.get(name)
        return "" if adapter is None or adapter.place is None else adapter.place.digest

    def __contains__(self, name: str | None) -> bool:
        return name in self._by_name

    def choose(self, name: str | None, numbers: Sequence[tuple[int, float]]) -> tuple[str, float] | None:
        """The name and the scale of a request's adapter, None where it has none; raises ApiError.

        Args:
            name: that of an adapter, by which the request has chosen it in the place of a model.
            numbers: the places of adapters in `all` with their scales, as llama.cpp's requests have them.
        """
        if not numbers:
            return None if name is None else (name, 1.0)
        if name is not None or len(numbers) > 1:
            chosen = len(numbers) + (name is not None)
            raise ApiError(f"lora and model choose {chosen} adapters; a request has one", param="lora")
        ((number, scale),) = numbers
        if number >= len(self._by_name):
            raise ApiError(
                f"lora has the id {number}; the model has {len(self._by_name)} adapters, listed by GET /lora-adapters",
                param="lora",
            )
        return self.all[number].name, scale

    @asynccontextmanager
    async def use(
        self, name: str, scale: float = 1.0, *, max_waiting: int | None = None
    ) -> AsyncIterator[AdapterChoice]:
        """The adapter of this name, which stays in its slot while the context lasts.

        Raises:
            ApiError: there is none, or it cannot be read any more.
            QueueFull: it is not in memory, and `max_waiting` requests wait for such adapters already.
            EngineError: the engine has ended.
        """
        adapter = self._by_name.get(name)
        if adapter is None:  # it was removed after the model was found by it
            raise _unknown(name)
        place = adapter.place
        if place is None or adapter.is_leaving:
            if max_waiting is not None and self._num_waiting >= max_waiting:
                raise QueueFull(f"{self._num_waiting} requests wait for adapters; the limit is {max_waiting}")
            self._num_waiting += 1
            adapter.num_waiting += 1
            try:
                place = await self._load_into_slot(adapter)
            finally:
                self._num_waiting -= 1
                adapter.num_waiting -= 1
        adapter.num_running += 1
        try:
            yield AdapterChoice(place.slot, place.digest, scale)
        finally:
            adapter.num_running -= 1
            adapter.used_at = time.monotonic()
            self._release(adapter)

    async def load(
        self, name: str, path: Path, *, in_place: bool = False, check: Callable[[], None] = lambda: None
    ) -> Path | None:
        """Serves one more adapter, from a folder or file on the server's machine.

        Returns where the one that it has replaced is read from.

        Args:
            in_place: it may replace one of this name; requests that run keep that.
            check: raises ApiError where the adapter cannot be served; it is called before and after the files are read.

        Raises:
            ApiError: the name is taken, the folder is no adapter of this model, or the server takes none.
        """
        engine = self._engine
        if engine is None:
            raise ApiError("the model is not loaded, so that it takes no adapters yet", status=503, code="not_loaded")
        check()
        self._check_free(name, in_place=in_place)
        try:
            weights = await _read(engine, path)
        except ModelError as error:
            raise ApiError(f"the adapter cannot be used: {error}", param="lora_path", code="invalid_adapter") from error
        check()  # another call may have taken the name meanwhile
        self._check_free(name, in_place=in_place)
        old = self._by_name.get(name)
        adapter = self._by_name[name] = ServedAdapter(name, path, int(time.time()))
        if old is not None:
            self._retire(old)
        if self._free:
            await self._load_into_slot(adapter, weights)
            self._release(adapter)  # it may have been removed meanwhile
        return None if old is None else old.path

    def _check_free(self, name: str, *, in_place: bool) -> None:
        """Raises ApiError where an adapter cannot get this name."""
        if name in self._by_name and not in_place:
            raise ApiError(f"the adapter {name} is loaded already", param="lora_name", code="adapter_exists")
        if name not in self._by_name and len(self._by_name) >= MOST_ADAPTERS:
            raise ApiError(f"there are {MOST_ADAPTERS} adapters, the most that one model has", param="lora_name")

    def remove(self, name: str) -> None:
        """Serves an adapter no longer; requests that run keep it. Raises ApiError (404) where there is none."""
        if name not in self._by_name:
            raise _unknown(name)
        self._retire(self._by_name.pop(name))

    def _retire(self, adapter: ServedAdapter) -> None:
        self._removed.append(adapter)
        self._release(adapter)

    def _release(self, adapter: ServedAdapter) -> None:
        """Frees the slot of an adapter that nothing uses, where it has no name any more."""
        if adapter.num_running:
            return
        if adapter in self._removed:
            self._removed.remove(adapter)
            if adapter.place is not None:
                self._free.append(adapter.place.slot)
                adapter.place = None
        self._freed.set()

    async def _load_into_slot(self, adapter: ServedAdapter, weights: AdapterWeights | None = None) -> InSlot:
        """Puts an adapter into a slot, and reads it first where that is not done; raises as `use`."""
        async with self._lock:  # in the order of the requests
            if adapter.place is not None:
                return adapter.place
            engine = self._engine
            assert engine is not None
            began = time.monotonic()
            try:
                weights = weights or await _read(engine, adapter.path)
            except ModelError as error:
                raise ApiError(
                    f"the adapter {adapter.name} cannot be read: {without_folders(str(error))}",
                    status=503, error_type=SERVER_ERROR, param="model", code="adapter_not_loaded",
                ) from error  # fmt: skip
            slot = await self._free_slot()
            try:
                await engine.load_adapter(slot, weights)
            except BaseException:
                self._free.append(slot)
                raise
            adapter.place = InSlot(slot, weights.digest)
            log.info("adapter_in_memory", adapter=adapter.name, seconds=round(time.monotonic() - began, 3))
            if self._by_name.get(adapter.name) is not adapter and adapter not in self._removed:
                self._removed.append(adapter)  # it was removed meanwhile, and its last request gives the slot back
            return adapter.place

    async def _free_slot(self) -> int:
        """A slot that no request uses, perhaps that of the adapter that was used the longest ago."""
        leaving: ServedAdapter | None = None
        try:
            while not self._free:
                in_memory = [each for each in self._by_name.values() if each.place is not None]
                unused = [each for each in in_memory if not each.num_running]
                if unused:
                    oldest = min(unused, key=lambda each: each.used_at)
                    assert oldest.place is not None
                    slot, oldest.place = oldest.place.slot, None
                    return slot
                if leaving is None and in_memory:
                    leaving = min(in_memory, key=lambda each: each.used_at)
                    leaving.is_leaving = True  # later requests for it wait, so that its slot becomes free
                self._freed.clear()
                await self._freed.wait()
            return self._free.pop()
        finally:
            if leaving is not None:
                leaving.is_leaving = False


async def _read(engine: EngineClient, path: Path) -> AdapterWeights:
    return await run_in_background(partial(engine.read_adapter, path), name="eagre-adapter", is_calm=True)


def _unknown(name: str) -> ApiError:
    return ApiError(f"the adapter {name} is not served", status=404, param="model", code="model_not_found")
