"""Imports without what a start does not need."""

import subprocess
import sys

from tests.patience import PATIENCE_S


def test_certificates_of_the_system_are_read_at_the_first_connection_with_tls() -> None:
    script = (
        "import ssl\n"
        "from server.cli.lean_imports import import_aiohttp\n"
        "import_aiohttp()\n"
        "from aiohttp.connector import _SSL_CONTEXT_UNVERIFIED, _SSL_CONTEXT_VERIFIED\n"
        "system = ssl.create_default_context()\n"
        "for context in (_SSL_CONTEXT_VERIFIED, _SSL_CONTEXT_UNVERIFIED):\n"
        "    assert isinstance(context, ssl.SSLContext)\n"
        "    assert context.cert_store_stats()['x509'] == 0\n"
        "    for _ in range(2):\n"
        "        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname='localhost')\n"
        "        assert context.cert_store_stats() == system.cert_store_stats()\n"
        "    assert type(context) is ssl.SSLContext\n"
        "assert _SSL_CONTEXT_VERIFIED.verify_mode == ssl.CERT_REQUIRED and _SSL_CONTEXT_VERIFIED.check_hostname\n"
        "assert 'set_default_verify_paths' not in vars(ssl.SSLContext)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stderr
