"""Authentication with a client certificate, in the TLS handshake."""

from __future__ import annotations

from typing import Any

from ..options.checks import readable_file
from .authentication import Authentication, text


class AuthenticationTLS(Authentication):
    """A client certificate for the TLS handshake. Needs a `pulsar+ssl://` address.

    Args:
        certificate_path: PEM file of the certificate.
        private_key_path: PEM file of its key.

    Raises:
        ConfigurationError: if a file cannot be read.
    """

    method_name: str = "tls"

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        self.certificate_path: str = text(certificate_path, "certificate_path")
        self.private_key_path: str = text(private_key_path, "private_key_path")
        readable_file(certificate_path, "AuthenticationTLS's certificate_path")
        readable_file(private_key_path, "AuthenticationTLS's private_key_path")

    async def data(self) -> bytes:
        """Return no data: the handshake proves the identity."""
        return b""

    def _native(self, library: Any) -> Any:
        return library.AuthenticationTLS.create(self.certificate_path, self.private_key_path)
