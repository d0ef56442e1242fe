"""Reads a batch's input file from the store, checks its lines, and notes where each one is."""

from functools import partial

from server.api.batches.input_scanner import InputScanner
from server.serving.served_models import ServedModels
from server.storage.batch_table import BatchLine, DuplicateId, StoredBatch
from server.storage.file_table import FilesFull
from server.storage.record_store import Tables

_CHUNK_BYTES = 256 << 10
_NOTED_AT_ONCE = 256  # lines in one transaction


async def validate(served: ServedModels, batch: StoredBatch, *, is_shared: bool) -> InputScanner | None:
    """Notes the lines of the batch, or finds errors in them; begins anew what an earlier process has begun.

    Args:
        is_shared: whether other keys need room for files too.

    Returns None where the batch is not to be validated any more. Raises StoreError.
    """
    number, file = batch.number, batch.input
    scanner = InputScanner(batch.fields["endpoint"], served.settings.max_body_bytes, served.find)
    if not await served.store.run(lambda tables: tables.batches.drop_lines(number)):
        return None
    start = 0
    while not scanner.is_given_up:
        chunk = await served.store.run_read(partial(_read, file, start))
        start += len(chunk)
        lines = await served.workers.run_large(partial(scanner.feed, chunk) if chunk else scanner.finish)
        for first in range(0, len(lines), _NOTED_AT_ONCE):
            await _note(served, number, lines[first : first + _NOTED_AT_ONCE], scanner, is_shared=is_shared)
        if not chunk:
            break
    return scanner


def _read(file: int, start: int, tables: Tables) -> bytes:
    return tables.files.read_range(file, start, _CHUNK_BYTES)


async def _note(
    served: ServedModels, number: int, lines: list[BatchLine], scanner: InputScanner, *, is_shared: bool
) -> None:
    if scanner.errors:
        return  # the batch fails; its lines are never computed
    try:
        await served.store.run(lambda tables: tables.batches.add_lines(number, lines, is_shared=is_shared))
    except DuplicateId as error:
        scanner.refuse(error)
    except FilesFull:
        scanner.refuse_all()
