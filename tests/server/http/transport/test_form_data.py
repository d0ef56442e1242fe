"""A form gives the same file and fields however its bytes are cut, and a bad one is refused."""

from __future__ import annotations

import pytest

from server.http.transport.form_data import FormData
from server.protocol.errors import ApiError

TYPE = "multipart/form-data; boundary=XyZ"
CONTENT = b"line one\r\n--Xy\r\n\r\n--XyA\r\n\xff\x00"


def part(head: str, content: bytes) -> bytes:
    return f"--XyZ\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"


def file_part(content: bytes = CONTENT, name: str = 'filename="in.jsonl"') -> bytes:
    return part(f'name="file"; {name}\r\nContent-Type: application/jsonl', content)


FORM = (
    b"a preamble\r\n" + part('name="purpose"', b"batch") + file_part()
    + part('name="expires_after[anchor]"', b"created_at") + part("name=other", b"") + b"--XyZ--\r\nan epilogue"
)  # fmt: skip


def parse(body: bytes, size: int = 1 << 20, content_type: str = TYPE) -> tuple[bytes, FormData]:
    form = FormData.of(content_type)
    content = b"".join(form.feed(body[start : start + size]) for start in range(0, len(body), size))
    form.finish()
    return content, form


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 1 << 20])
def test_every_split_gives_the_same(size: int) -> None:
    content, form = parse(FORM, size)
    assert content == CONTENT
    assert form.file_name == "in.jsonl"
    assert form.fields == {"purpose": "batch", "expires_after[anchor]": "created_at", "other": ""}


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ('filename="a \\"b\\".jsonl"', 'a "b".jsonl'),
        ("filename=plain", "plain"),
        ("filename=\"x\"; filename*=UTF-8''%C3%A9.jsonl", "é.jsonl"),
        ('filename="é.jsonl"', "é.jsonl"),
        ('filename=""', ""),
    ],
)
def test_names_of_files(head: str, name: str) -> None:
    assert parse(file_part(name=head) + b"--XyZ--")[1].file_name == name


@pytest.mark.parametrize("content", [b"", b"\r\n", b"--", b"\r\n--XyY\r\n"])
def test_odd_contents(content: bytes) -> None:
    assert parse(file_part(content) + b"--XyZ--\r\n", 3)[0] == content


def test_a_quoted_boundary() -> None:
    assert parse(FORM, content_type='Multipart/Form-Data; charset=utf-8; boundary="XyZ"')[0] == CONTENT


@pytest.mark.parametrize(
    "content_type",
    ["", "application/json", "multipart/form-data", "multipart/mixed; boundary=a", "multipart/form-data; boundary="],
)
def test_what_is_no_form(content_type: str) -> None:
    with pytest.raises(ApiError, match="it must be multipart/form-data with a boundary") as raised:
        FormData.of(content_type)
    assert raised.value.status == 415


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "ends before its last boundary"),
        (FORM[:-30], "ends before its last boundary"),
        (b"no form at all", "ends before its last boundary"),
        (part('name="purpose"', b"batch") + b"--XyZ--", "file is required"),
        (part('name="file"', b"x") + b"--XyZ--", "it must have a filename"),
        (file_part() + file_part() + b"--XyZ--", "two files"),
        (part('name="purpose"', b"x" * 1025) + b"--XyZ--", "purpose has more than 1024 bytes"),
        (part('name="a"', b"") * 17 + b"--XyZ--", "more than 16 parts"),
        (b"--XyZ\r\n" + b"a: b\r\n" * 2000, "head has more than"),
        (b"--XyZabc\r\n\r\n\r\n--XyZ--", "a boundary is not at the end of its line"),
    ],
)
@pytest.mark.parametrize("size", [11, 1 << 20])
def test_bad_forms(body: bytes, reason: str, size: int) -> None:
    with pytest.raises(ApiError, match=reason) as raised:
        parse(body, size)
    assert raised.value.status == 400
