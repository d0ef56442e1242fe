"""Certificates that are made here with OpenSSL's command."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from server.admission.certificate import Certificate, CertificateError

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")


def make_certificate(folder: Path, name: str, *options: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    chain, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [*command, *subject, "-keyout", str(key), "-out", str(chain), *(options or ("-nodes",))]
    subprocess.run(made, check=True, capture_output=True)
    return chain, key


@needs_openssl
def test_clients_cannot_renegotiate(tmp_path: Path) -> None:
    certificate = Certificate(*make_certificate(tmp_path, "served"))
    assert certificate.context.options & ssl.OP_NO_RENEGOTIATION


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"none\.pem"):
        Certificate(tmp_path / "none.pem", tmp_path / "none.key")


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe, other = tmp_path / "pipe", tmp_path / "other"
    os.mkfifo(pipe)
    other.touch()
    with pytest.raises(CertificateError, match=rf"the certificate {pipe} cannot be read: it is a named pipe"):
        Certificate(pipe, other)
    with pytest.raises(CertificateError, match=rf"the key {pipe} cannot be read: it is a named pipe"):
        Certificate(other, pipe)


@needs_openssl
def test_a_key_with_a_password_or_of_another_certificate_is_refused(tmp_path: Path) -> None:
    chain, key = make_certificate(tmp_path, "one")
    _, other = make_certificate(tmp_path, "two")
    _, locked = make_certificate(tmp_path, "three", "-passout", "pass:secret")
    Certificate(chain, key)
    for wrong in (other, locked, chain):
        with pytest.raises(CertificateError):
            Certificate(chain, wrong)
