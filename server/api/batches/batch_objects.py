"""Batches as the API shows them."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from server.protocol.errors import ApiError, shorten
from server.storage.batch_table import StoredBatch


class BatchStatus(StrEnum):
    """The state of a batch; the values are the wire names."""

    VALIDATING = "validating"
    FAILED = "failed"  # its file is not valid
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


_TIMES = (
    "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
    "cancelled_at",
)  # fmt: skip


def batch_object(batch: StoredBatch) -> dict[str, Any]:
    """The object of a batch."""
    fields, usage = {**batch.fields, "expires_at": batch.expires}, batch.usage
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": fields["endpoint"],
        "model": fields.get("model"),
        "errors": fields.get("errors"),
        "input_file_id": fields["input_file_id"],
        "completion_window": fields["completion_window"],
        "status": batch.status,
        "output_file_id": fields.get("output_file_id"),
        "error_file_id": fields.get("error_file_id"),
        "created_at": batch.created,
        **{name: fields.get(name) for name in _TIMES},
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
        "metadata": fields.get("metadata"),
    }


def list_object(data: Sequence[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A list of objects with ids."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


def batch_not_found(batch_id: str, param: str = "batch_id") -> ApiError:
    """404, for a batch that is not there or another key's."""
    return ApiError(f"No batch found with id {shorten(batch_id)}", status=404, param=param, code="batch_not_found")
