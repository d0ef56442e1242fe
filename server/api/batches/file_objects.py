"""Files as the API shows them, and what an upload may say of one."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from server.api.conversations.query_params import parse_number
from server.protocol.errors import ApiError, invalid_value, shorten
from server.storage.batch_table import OUTPUT_PURPOSE
from server.storage.file_table import StoredFile

BATCH_PURPOSE = "batch"
MAX_NAME_CHARS = 255
MAX_FILES_LISTED = 10_000
LEAST_LIFETIME_S, MAX_LIFETIME_S = 3600, 30 * 86_400  # OpenAI's
DEFAULT_LIFETIME_S = MAX_LIFETIME_S  # of files of batches, as in OpenAI's API
EXPIRES_AFTER_ANCHOR, EXPIRES_AFTER_SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FIELDS = ("purpose", EXPIRES_AFTER_ANCHOR, EXPIRES_AFTER_SECONDS)  # of an upload, besides the file

_UNFIT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def file_object(file: StoredFile) -> dict[str, Any]:
    """The object of a file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": file.created,
        "expires_at": file.expires,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def file_not_found(file_id: str, param: str = "file_id") -> ApiError:
    """404, for a file that is not there or another key's."""
    return ApiError(f"No such File object: {shorten(file_id)}", status=404, param=param, code="file_not_found")


class FileListQuery(NamedTuple):
    """The requested part of the list of files."""

    limit: int
    after: str | None
    purpose: str | None
    is_ascending: bool

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "FileListQuery":
        """Parses a query; raises ApiError for an invalid value."""
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid_value(f"order is {shorten(order)}; it must be asc or desc", "order")
        purpose = query.get("purpose")
        if purpose not in (None, BATCH_PURPOSE, OUTPUT_PURPOSE):
            raise invalid_value(
                f"purpose is {shorten(purpose)}; it must be {BATCH_PURPOSE} or {OUTPUT_PURPOSE}", "purpose"
            )
        limit = parse_number(query, "limit", 1, MAX_FILES_LISTED, MAX_FILES_LISTED)
        return cls(limit, query.get("after"), purpose, order == "asc")


def checked_name(name: str) -> str:
    """The name of an uploaded file; raises ApiError where it cannot be one."""
    if not 1 <= len(name) <= MAX_NAME_CHARS or _UNFIT_IN_NAMES.search(name) is not None:
        raise invalid_value(
            f"the name of the file is {shorten(name)}; it must have 1 to {MAX_NAME_CHARS} characters, none of them a "
            "control character",
            "file",
        )
    return name


def lifetime_of(fields: Mapping[str, str]) -> int:
    """The seconds after which an uploaded file expires; raises ApiError."""
    anchor, seconds = fields.get(EXPIRES_AFTER_ANCHOR), fields.get(EXPIRES_AFTER_SECONDS)
    if anchor is None and seconds is None:
        return DEFAULT_LIFETIME_S
    if anchor != "created_at":
        raise invalid_value(f"expires_after.anchor is {shorten(anchor)}; it must be created_at", "expires_after.anchor")
    return parse_number(
        {} if seconds is None else {"expires_after.seconds": seconds}, "expires_after.seconds", LEAST_LIFETIME_S,
        MAX_LIFETIME_S, DEFAULT_LIFETIME_S,
    )  # fmt: skip


def check_purpose(purpose: str | None) -> None:
    """Raises ApiError: an upload has no purpose, or one that this server has no use for."""
    if purpose is None:
        raise ApiError("purpose is required", param="purpose", code="missing_required_parameter")
    if purpose != BATCH_PURPOSE:
        raise invalid_value(
            f"purpose is {shorten(purpose)}; this server takes files for batches alone, with the purpose "
            f"{BATCH_PURPOSE}",
            "purpose",
        )
