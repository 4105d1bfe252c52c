"""TLS contexts: trusted certificates, the client's certificate, and errors of the handshake.

A context is made again when one of its files has changed. The host name in the broker's certificate
is verified, unlike in Java's and the C++ client, unless all checks are off.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import certifi

from ....errors import AuthenticationError, ConnectError, PulsarException

# Verification errors of OpenSSL (X509_V_ERR_*).
_EXPIRED: Final = 10
_NOT_YET: Final = 9
_OTHER_NAME: Final = (62, 64)  # for a host name, and for an IP address
# The peer does not accept our certificate, or requires one.
_CERTIFICATE_ALERTS: Final = (
    "CERTIFICATE_REQUIRED",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_",
    "ALERT_UNKNOWN_CA",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_ACCESS_DENIED",
    "ALERT_DECRYPT_ERROR",
)
# The peer uses another protocol.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER")

_Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(kw_only=True, eq=False)
class TlsContext:
    """The TLS settings of a client. All files are PEM.

    Attributes:
        trust_file: None for the system's certificates, or certifi's if the system has none.
        key_file: Not encrypted.
        insecure: Accept any certificate, for any name.
    """

    trust_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    insecure: bool = False
    _cached: tuple[_Stamp, ssl.SSLContext] | None = field(default=None, init=False)

    def context(self) -> ssl.SSLContext:
        """Return the context for one connection, or raise `ConnectError` if a file cannot be
        used."""
        stamp = self.stamp()
        if self._cached is None or self._cached[0] != stamp:
            self._cached = (stamp, self._make())
        return self._cached[1]

    def stamp(self) -> _Stamp:
        files = (self.trust_file, self.certificate_file, self.key_file)
        return tuple(_stamp(path) for path in files)

    def _make(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            self._trust(context)
        if self.certificate_file is not None:
            try:
                # Without a password OpenSSL would ask for one on the terminal.
                context.load_cert_chain(self.certificate_file, self.key_file, password="")
            except OSError as error:  # an SSLError is one
                raise ConnectError(
                    f"the client certificate {self.certificate_file!r} with the key "
                    f"{self.key_file!r} cannot be used ({_reason_of(error)}): both must be PEM, "
                    "belong together, and the key must not be encrypted",
                    retryable=False,
                ) from error
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        if self.trust_file is None:
            context.load_default_certs()
            if not _has_roots(context):
                context.load_verify_locations(certifi.where())
            return
        try:
            context.load_verify_locations(self.trust_file)
        except OSError as error:
            raise ConnectError(
                f"tls_trust_certs_file_path {self.trust_file!r} cannot be used "
                f"({_reason_of(error)}): it must have certificates in PEM",
                retryable=False,
            ) from error


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    """Return a value that changes with a file's content, also if a link to the file is moved."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _has_roots(context: ssl.SSLContext) -> bool:
    if context.cert_store_stats()["x509_ca"]:
        return True
    folder = ssl.get_default_verify_paths().capath  # OpenSSL reads it when it looks for a root
    return folder is not None and any(Path(folder).iterdir())


def _reason_of(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)


def handshake_error(peer: str, host: str, error: Exception) -> PulsarException:
    """Return the error for a failed handshake. `host` is the name that the certificate must
    have."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectError(f"{peer}: {_not_trusted(host, error)}", retryable=False)
    refusal = client_certificate_error(peer, error)
    if refusal is not None:
        return refusal
    if isinstance(error, ssl.SSLError) and not any(each in str(error) for each in _NO_TLS):
        return ConnectError(f"no TLS with {peer}: {_reason_of(error)}")
    # The peer does not use TLS, or closed the connection. A plain port does either.
    how = "answered with something else" if isinstance(error, ssl.SSLError) else "ended it"
    return ConnectError(
        f"no TLS with {peer}, which {how}: if that is its port for plain connections, use "
        "pulsar:// (or http://), or its port for TLS",
        retryable=not isinstance(error, ssl.SSLError),
    )


def _not_trusted(host: str, error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired: it must be renewed there"
    if code == _NOT_YET:
        return "its certificate is not valid yet: compare the clocks of both machines"
    if code in _OTHER_NAME:
        return (
            f"its certificate is not for {host!r}: connect by a name that it has, or have one "
            "issued for this name (tls_allow_insecure_connection=True would accept any "
            "certificate, of anybody)"
        )
    return (
        f"its certificate is not trusted ({error.verify_message}): tls_trust_certs_file_path must "
        "have the certificate of its issuer"
    )


def client_certificate_error(peer: str, error: Exception | None) -> AuthenticationError | None:
    """Return the error if the broker did not accept the client's certificate; None otherwise.

    With TLS 1.3 the broker reports this after the handshake.
    """
    if not isinstance(error, ssl.SSLError):
        return None
    refusal = str(error)
    if not any(each in refusal for each in _CERTIFICATE_ALERTS):
        return None
    return AuthenticationError(
        f"{peer} does not take the client's certificate, or wants one ({_reason_of(error)}): see "
        "AuthenticationTLS, or tls_certificate_file_path and tls_private_key_file_path"
    )
