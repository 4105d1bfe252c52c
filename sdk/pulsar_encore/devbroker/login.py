"""Authenticate clients at CONNECT and while they are connected.

When a credential has expired, the broker requests a new one by AUTH_CHALLENGE once. The session
ends if no valid answer arrives before the next check (wire-protocol.md 3.2).
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import Message

from ..wire import NO_REQUEST, PROTOCOL_VERSION, pb
from .broker_service import BrokerService
from .clock import Timer
from .rules.credentials import Credential
from .rules.refusal import Refusal

REFRESH = b"PulsarAuthRefresh"


class Login:
    """The credential of one session.

    Args:
        certificate: Common name of the client's certificate; None without one.
        end: Ends the session, with a reason.
    """

    def __init__(
        self,
        service: BrokerService,
        certificate: str | None,
        send: Callable[[Message], None],
        end: Callable[[str], None],
    ) -> None:
        self._service = service
        self._certificate = certificate
        self._send = send
        self._end = end
        self._credential: Credential | None = None
        self._refreshes = False
        self._challenged = False
        self._timer: Timer | None = None

    def connect(self, command: pb.CommandConnect) -> bool:
        """Authenticate CONNECT. On failure end the session and return False."""
        self._refreshes = command.feature_flags.supports_auth_refresh
        if not self._accept(command.auth_method_name, command.auth_data):
            return False
        if self._credential is not None:
            self._check_later()
        return True

    def respond(self, command: pb.CommandAuthResponse) -> None:
        """Take a new credential. Success has no answer."""
        previous = self._credential
        if previous is None:
            return
        response = command.response
        if not self._accept(response.auth_method_name, response.auth_data):
            return
        assert self._credential is not None
        if self._credential.role != previous.role:
            self._end(f"role {self._credential.role!r} answers for {previous.role!r}")
        self._challenged = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _accept(self, method: str, data: bytes) -> bool:
        service = self._service
        try:
            self._credential = service.credentials.check(
                method, data, self._certificate, service.age_ms()
            )
        except Refusal as refusal:
            self._send(
                pb.CommandError(
                    error=pb.AuthenticationError, message=refusal.message, request_id=NO_REQUEST
                )
            )
            self._end(refusal.message)
            return False
        return True

    def _check_later(self) -> None:
        check_s = self._service.settings.auth_refresh_check_s
        self._timer = self._service.clock.call_later(check_s, self._check)

    def _check(self) -> None:
        credential = self._credential
        assert credential is not None
        if credential.expired(self._service.age_ms()):
            if not self._refreshes:
                self._end("the credential has expired, and the client knows no AUTH_CHALLENGE")
                return
            if self._challenged:
                self._end("AUTH_CHALLENGE was not answered")
                return
            self._challenged = True
            self._send(
                pb.CommandAuthChallenge(
                    challenge=pb.AuthData(auth_method_name=credential.method, auth_data=REFRESH),
                    protocol_version=PROTOCOL_VERSION,
                )
            )
        self._check_later()
