"""Registers the routes of files and batches."""

from aiohttp import web

from server.admission.keyring import KeyRing
from server.http.batches import batches, files
from server.http.batches.batch_runner import BATCH_RUNNER, BatchRunner, run_batches
from server.http.batches.upload import upload
from server.http.entry.served import SERVED

FILES = "/v1/files"
BATCHES = "/v1/batches"


def add_routes(app: web.Application, keys: KeyRing) -> None:
    """Adds every route of files and batches, and what computes the batches."""
    app[BATCH_RUNNER] = BatchRunner(app[SERVED], keys)
    app.cleanup_ctx.append(run_batches)
    router = app.router
    router.add_post(FILES, upload)
    router.add_get(FILES, files.list_files)
    router.add_get(FILES + "/{id}", files.retrieve)
    router.add_delete(FILES + "/{id}", files.delete)
    router.add_get(FILES + "/{id}/content", files.content, allow_head=False)
    router.add_post(BATCHES, batches.create)
    router.add_get(BATCHES, batches.list_batches)
    router.add_get(BATCHES + "/{id}", batches.retrieve)
    router.add_post(BATCHES + "/{id}/cancel", batches.cancel)
