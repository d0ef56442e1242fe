"""What errors tell clients, and what they do not."""

from __future__ import annotations

import pytest

from server.protocol.errors import ApiError, without_folders


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/models/a.gguf was cut short while it was read", "a.gguf was cut short while it was read"),
        ("the store in /var/lib/eagre/store.db cannot be used", "the store in store.db cannot be used"),
        ("No such file: '/srv/my-models/b'", "No such file: 'b'"),
        ("/a.gguf is damaged", "a.gguf is damaged"),
        ("POST /v1/responses", "POST responses"),
        ("see https://example.com/a/b, and and/or", "see https://example.com/a/b, and and/or"),
        ("owner/name", "owner/name"),
        ("12 tokens/s", "12 tokens/s"),
    ],
)
def test_folders_are_left_out(text: str, shown: str) -> None:
    assert without_folders(text) == shown


def test_an_error_of_the_server_names_no_folder() -> None:
    assert ApiError("/srv/a.gguf is damaged", status=503).message == "a.gguf is damaged"
    assert ApiError("/v1/a has no x").message == "/v1/a has no x"
