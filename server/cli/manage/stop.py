"""`eagre stop` and `eagre rm`: end servers that `run` has started, and delete models from the cache."""

from __future__ import annotations

import sys

from server.cli.client.errors import NoAnswer
from server.cli.manage.server_record import running_servers
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.removal import remove_model
from server.startup.model_settings import name_of

STOP_S = 30.0  # as long as a server lets its streams go on, and some more


def stop_servers(model: str | None) -> None:
    """Ends the servers that `run` has started, all or those of one model; raises NoAnswer where there is none."""
    found = [record for record in running_servers() if model is None or record.model == name_of(model)]
    if not found:
        which = "no server" if model is None else f"no server of {model}"
        raise NoAnswer(f"{which} was started by `eagre run`; one of `eagre serve` ends with Ctrl-C or SIGTERM")
    for record in found:
        if not record.stop(STOP_S):
            raise NoAnswer(f"the server at {record.url} (process {record.pid}) still runs after {STOP_S:.0f} s")
        print(f"{record.model} at {record.url} has ended", file=sys.stderr)


def remove(model: str) -> str:
    """Deletes a fetched model from the cache; returns what was freed as text. Raises NoAnswer."""
    for record in running_servers():
        if record.model == name_of(model):
            raise NoAnswer(f"{model} is served at {record.url}; `eagre stop {model}` ends that")
    try:
        num_bytes = remove_model(model)
    except (ModelStoreError, OSError) as error:
        raise NoAnswer(str(error)) from error
    return f"{model} is removed; {num_bytes / 1e6:.1f} MB are free\n"
