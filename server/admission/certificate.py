"""The certificate of a TLS server, which can be replaced while the server runs."""

import ssl
from pathlib import Path

from engine.interface.regular_file import open_regular


class CertificateError(ValueError):
    """A certificate or its key cannot be used; the message names the files."""


class Certificate:
    """A certificate chain and its private key, from two PEM files."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Raises CertificateError: as for `reload`."""
        self._chain, self._key = chain, key
        self._current = self._load()
        # What a server listens with. Each handshake (RFC 8446, section 4.1) is moved to the newest certificate, so
        # that nothing has to change in a context that other handshakes are using.
        self.context = self._load()
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Reads both files again, for later connections; raises CertificateError and keeps the old certificate."""
        self._current = self._load()

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # each would cost a signature
        for what, path in (("certificate", self._chain), ("key", self._key)):
            try:
                open_regular(path).close()  # OpenSSL would wait for what comes out of a named pipe
            except OSError as error:
                raise CertificateError(f"the {what} {path} cannot be read: {error.strerror}") from error
        try:
            # An empty password fails at once where one is wanted; without it, OpenSSL would ask at the terminal.
            context.load_cert_chain(self._chain, self._key, password="")
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise CertificateError(f"the certificate {self._chain} with the key {self._key}: {reason}") from error
        return context

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current
