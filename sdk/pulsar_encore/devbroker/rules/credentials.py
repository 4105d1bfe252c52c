"""Credentials that a broker accepts, and their expiry. Secrets are compared and never shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...errors import ConfigurationError
from .refusal import Refusal

METHODS = ("token", "basic", "tls")


@dataclass(frozen=True, kw_only=True, slots=True)
class Credential:
    """A credential for clients.

    Args:
        data: The token; ``user:password`` for basic; for tls the common name of the client's
            certificate, which the TLS handshake has verified.
        method: ``"token"``, ``"basic"`` or ``"tls"``.
        role: Role of the client. A connection keeps its role when it presents a new credential.
        expires_s: Seconds after the broker's start at which the credential expires; None for never.

    Raises:
        ConfigurationError: if the method is unknown or `data` is empty.
    """

    data: str = field(repr=False)
    method: str = "token"
    role: str = "user"
    expires_s: float | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigurationError(f"method must be one of {METHODS}, not {self.method!r}")
        if not self.data:
            raise ConfigurationError(f"the {self.method} credential of {self.role!r} is empty")

    def expired(self, now_ms: float) -> bool:
        """Return True if it has expired. `now_ms` counts from the broker's start."""
        return self.expires_s is not None and now_ms >= self.expires_s * 1000


class Credentials:
    """The accepted credentials. Without any, every client is accepted."""

    def __init__(self, accepted: Sequence[Credential]) -> None:
        self._accepted = tuple(accepted)

    def check(
        self, method: str, data: bytes, certificate: str | None, now_ms: float
    ) -> Credential | None:
        """Find the credential that a client presents; None if authentication is off.

        Args:
            data: `auth_data`; not used for tls.
            certificate: Common name of the client's certificate; None without one.
            now_ms: Ms since the broker's start.
        """
        if not self._accepted:
            return None
        shown = (certificate or "").encode() if method == "tls" else data
        for each in self._accepted:
            if each.method == method and each.data.encode() == shown and not each.expired(now_ms):
                return each
        raise Refusal("AuthenticationError", "Failed to authenticate")
