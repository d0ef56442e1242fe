"""The servers that the commands look at: the one at the given or default address, and those that `run` has started."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from server.cli.client import address
from server.cli.client.errors import NoAnswer, NoServer
from server.cli.client.server_client import ServerClient
from server.cli.manage.server_record import ServerRecord, running_servers


def models_at(url: str, api_key: str | None) -> list[dict[str, Any]]:
    """The objects of `GET /v1/models`; raises NoServer or NoAnswer."""
    found: list[dict[str, Any]] = orjson.loads(asyncio.run(ServerClient(url, api_key).get("/v1/models")))["data"]
    return found


def served_models(url: str | None, api_key: str | None) -> list[tuple[str, ServerRecord | None, list[dict[str, Any]]]]:
    """The address, the record and the models of each server; a given address is the only one, and must answer.

    Raises NoServer where nothing answers, NoAnswer where a server refuses.
    """
    records = {record.url: record for record in running_servers()}
    urls = [url] if url is not None else list(dict.fromkeys([address.DEFAULT_URL, *records]))
    found = []
    for each in urls:
        record = records.get(each)
        try:
            found.append((each, record, models_at(each, api_key)))
        except NoAnswer as error:
            if record is not None:
                found.append((each, record, [{"id": record.model, "state": "loading"}]))
            elif url is not None or not isinstance(error, NoServer):
                raise
    if not found:
        raise NoServer(f"no server answers at {address.DEFAULT_URL}; `eagre run MODEL` or `eagre serve` starts one")
    return found
