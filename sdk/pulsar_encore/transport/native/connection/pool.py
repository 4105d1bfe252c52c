"""The connections of a client on one event loop: one per broker.

Callers that need a broker at the same time share one attempt, which a cancelled caller does not
end. If the client moves to another cluster, its connections end, and consumers and producers attach
again there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections.abc import Iterator
from functools import partial
from itertools import count
from random import Random
from typing import Final, NamedTuple

from ....errors import (
    AuthenticationError,
    ClosedError,
    ConnectError,
    EncoreError,
    ErrorGettingAuthenticationData,
    NotConnected,
    NotSupportedError,
    ProtocolError,
    PulsarException,
    TransportTimeout,
)
from ....eventloop.affinity import cancel
from ....eventloop.alarm import now_ms
from ....eventloop.shielded_work import shielded
from ..client_settings import ClientSettings
from .addresses import Address, Addresses, weaker_address_error
from .cluster_service import ClusterService, ConnectionCredentials
from .codec_thread import Codecs, CodecThread
from .session import ByteTransport, Session

_CLOSE_WAIT_S: Final = 1.0
_MOVED: Final = "the client moved to another cluster; the lookup is repeated there"
# Between two checks of the credentials. Doubles with each check that finds other ones: a supplier
# that makes a new token for each call must not cause a connection per refusal.
_REFRESH_S: Final = 10.0
_MAX_REFRESH_S: Final = 600.0


class ConnectionKey(NamedTuple):
    """How a broker is reached: `proxy_to` is its ``host:port`` if `address` is a proxy."""

    address: Address
    proxy_to: str | None = None


class ConnectionPool:
    """The connections of one client on one event loop.

    `rng` spreads attempts. `closed` is True once the pool was shut down, with the client or the
    event loop.
    """

    def __init__(
        self,
        service: ClusterService,
        settings: ClientSettings,
        rng: Random,
        codecs: Codecs | None = None,
    ) -> None:
        self.settings: ClientSettings = settings
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.rng: Random = rng
        self.codecs: Codecs = codecs or CodecThread()
        self.service: ClusterService = service
        self._addresses = Addresses(list(service.addresses), rng)
        # Unique in a client: a late answer belongs to no other request.
        self._request_ids = count(rng.randrange(1 << 31))
        self.watcher_ids: Iterator[int] = count(1)
        self._sessions: dict[ConnectionKey, asyncio.Task[Session]] = {}
        # All open ones. Connections that `_sessions` lacks showed old credentials, and are kept for
        # the consumers and producers attached to them.
        self._keys: dict[Session, ConnectionKey] = {}
        self._last_good: Address | None = None  # answered last
        self._hurry_event = asyncio.Event()  # ends the waits in `rest`
        self._closing: set[asyncio.Future[None]] = set()
        self._renewing: set[asyncio.Task[None]] = set()
        self._idle: dict[Session, int] = {}  # with the request count at the last check
        self._sweep: asyncio.TimerHandle | None = None
        self._refreshed_s = -math.inf
        self._refresh_s = _REFRESH_S
        self._connect_failed = False  # the last attempt to connect
        self.closed: bool = False

    # Finding a broker

    async def any_broker(self) -> Session:
        """Return a connection to any broker of the service, or raise the error of the last
        address."""
        failure: PulsarException | None = None
        service = self.service
        for address in self.addresses_to_try():
            try:
                session = await self.broker(address)
            except PulsarException as error:
                failure = error
                self.avoid(address, service)
                if self.closed or service is not self.service:
                    break
                continue
            self.prefer(address, service)
            return session
        assert failure is not None, "a service has addresses"
        raise failure.with_traceback(None)

    def addresses_to_try(self) -> Iterator[Address]:
        addresses = self._addresses
        for number in range(len(addresses)):
            at_first = self._last_good if number == 0 else None
            yield at_first or addresses.next(now_ms(self.loop))

    def prefer(self, address: Address, service: ClusterService) -> None:
        if service is self.service:
            self._addresses.end_quarantine(address)
            self._last_good = address

    def avoid(self, address: Address, service: ClusterService) -> None:
        if service is self.service:
            self._addresses.quarantine(address, now_ms(self.loop))
            if self._last_good == address:
                self._last_good = None

    def check_cluster(self, service: ClusterService) -> None:
        """Raise `NotConnected` if the client has moved from `service` to another cluster.

        Addresses of the first cluster must not get credentials of the second.
        """
        if service is not self.service:
            raise NotConnected(_MOVED)

    async def broker(
        self,
        address: Address,
        *,
        through: Address | None = None,
        service: ClusterService | None = None,
    ) -> Session:
        """Return a connection to one broker.

        Args:
            through: A proxy that connects to the broker for us.
            service: The cluster that named the address, for `check_cluster`.

        Raises:
            LookupError: if the service URL has TLS, and the address to connect to has none.
        """
        if self.closed:
            raise ClosedError("the client is closed: create another")
        if service is not None:
            self.check_cluster(service)
        if through is None or through == address:
            key = ConnectionKey(address)
        else:
            key = ConnectionKey(through, address.host_port)
        task = self._sessions.get(key)
        if task is None or (task.done() and not _is_usable(task)):
            task = self.loop.create_task(self._open(key, self.service))
            self._sessions[key] = task
            task.add_done_callback(partial(self._on_opened, key))
        try:
            return await shielded(task)
        except asyncio.CancelledError:
            if is_cancelled() or not task.cancelled():
                raise
            # `move` or `shutdown` cancelled the task before its first step.
            if self.closed:
                raise ClosedError("the client was closed while it connected") from None
            raise NotConnected(_MOVED) from None

    def key_of(self, session: Session) -> ConnectionKey | None:
        return self._keys.get(session)

    async def refresh_credentials(self) -> None:
        """Connect again if the application has other credentials now, after a broker's refusal.

        Brokers send AUTH_CHALLENGE when credentials expire, but not when they refuse a request for
        lack of permission. Consumers and producers stay on their connection with old credentials.

        There are at most two connections to a broker, one of them outdated. While both are in use,
        later credentials are shown only when the broker asks for them.
        """
        now_s = self.loop.time()
        if now_s - self._refreshed_s < self._refresh_s:
            return
        self._refreshed_s = now_s
        try:
            data = await self.data_of(self.service.credentials)
        except EncoreError:
            return  # the next attempt to connect reports the error
        shown = _digest(self.service, data)
        changed = False
        for key, task in list(self._sessions.items()):
            if not _is_usable(task) or task.result().credentials_digest == shown:
                continue
            changed = True
            session = task.result()
            if session.idle:
                del self._sessions[key]
                session.close()
            elif list(self._keys.values()).count(key) == 1:
                del self._sessions[key]
        self._refresh_s = min(_MAX_REFRESH_S, 2 * self._refresh_s) if changed else _REFRESH_S

    # Connecting

    async def probe(self, service: ClusterService) -> bool:
        """Return True if one address of a cluster accepts the client. Leaves no connection."""
        for address in service.addresses:
            try:
                session = await self._connect(ConnectionKey(address), service)
            except EncoreError:
                continue
            session.close()
            return True
        return False

    async def _open(self, key: ConnectionKey, service: ClusterService) -> Session:
        try:
            session = await self._connect(key, service)
        except asyncio.CancelledError:
            if self.closed:
                raise ClosedError("the client was closed while it connected") from None
            if service is not self.service:
                raise NotConnected(_MOVED) from None
            raise
        if not session.closed:
            self._keys[session] = key
        return session

    async def _connect(self, key: ConnectionKey, service: ClusterService) -> Session:
        settings, address = self.settings, key.address
        if service.secure and not address.tls:
            # `broker_address` has checked this, but here all callers pass before bytes leave.
            raise weaker_address_error(service, address, "connect")
        credentials = service.credentials
        peer = f"{address} for {key.proxy_to}" if key.proxy_to else str(address)
        data = await self.data_of(credentials)
        began = self.loop.time()

        def make(transport: ByteTransport) -> Session:
            return Session(
                transport,
                loop=self.loop,
                request_ids=self._request_ids,
                keep_alive_s=settings.keep_alive_s,
                peer=peer,
                tls=address.tls,
                renew=partial(self._renew, service),
                on_end=self._on_ended,
                logger_of=settings.logger_of,
            )

        timeout_s = settings.connection_timeout_s
        session = await service.dialer.dial(address, make, timeout_s)
        session.credentials_digest = _digest(service, data)
        try:
            session.connect(
                method=credentials.method_name,
                data=data,
                proxy_to=key.proxy_to,
            )
            left = max(0.0, began + timeout_s - self.loop.time())
            async with asyncio.timeout(left):
                await session.ready
        except TimeoutError as error:
            failure = TransportTimeout(
                f"{peer} did not answer the handshake within {timeout_s:g} s"
            )
            session.fail(failure)
            raise failure from error
        except asyncio.CancelledError:
            session.close()
            raise
        except AuthenticationError:
            # A cached OAuth2 token must be fetched again.
            refused = getattr(credentials, "refused", None)
            if refused is not None:
                refused()
            raise
        except NotConnected as error:
            raise _closed_early_error(peer, address, session, error) from error
        except ProtocolError as error:
            raise _foreign_protocol_error(peer, address, error) from error
        return session

    def _renew(self, service: ClusterService, session: Session) -> None:
        task = self.loop.create_task(self._answer_challenge(service, session))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)

    def _on_opened(self, key: ConnectionKey, task: asyncio.Task[Session]) -> None:
        if not _is_usable(task):
            self._connect_failed |= not task.cancelled()
            if self._sessions.get(key) is task:
                del self._sessions[key]
            return
        if self._connect_failed:
            # Else consumers and producers may wait for another minute.
            self._connect_failed = False
            self.retry_now()
        if self._sweep is None and self.settings.idle_s:
            self._sweep = self.loop.call_later(self.settings.idle_s, self._close_idle)

    def _on_ended(self, session: Session) -> None:
        self._idle.pop(session, None)
        self._keys.pop(session, None)
        for key, task in list(self._sessions.items()):
            if task.done() and not _is_usable(task):
                del self._sessions[key]

    def _close_idle(self) -> None:
        """Close connections that were idle at this check and the one before, with no request
        between."""
        self._sweep = None
        for session, asked in list(self._idle.items()):
            if session.idle and session.requests.begun == asked:
                session.close()
        self._idle = {each: each.requests.begun for each in self._keys if each.idle}
        if self._keys:
            self._sweep = self.loop.call_later(self.settings.idle_s, self._close_idle)

    # The whole pool

    @property
    def sessions(self) -> list[Session]:
        """The connections for new consumers and producers."""
        return [task.result() for task in self._sessions.values() if _is_usable(task)]

    def move(self, service: ClusterService) -> None:
        if self.closed:
            return
        self.service = service
        self._addresses = Addresses(list(service.addresses), self.rng)
        self._last_good = None
        self._end_all()
        self.retry_now()

    async def rest(self, seconds: float) -> bool:
        """Wait for a time in s; return True if `retry_now` ended the wait early."""
        hurry_event = self._hurry_event
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await hurry_event.wait()
        return hurry_event.is_set()

    def retry_now(self) -> None:
        """End all waits in `rest`, because a broker may be back."""
        self._hurry_event.set()
        self._hurry_event = asyncio.Event()

    def shutdown(self) -> None:
        self.closed = True
        self.codecs.shutdown()
        if self.loop.is_closed():
            # The broker keeps dispatched messages until the connections end, and no method of the
            # loop works any more.
            for session in self._keys:
                session.sever()
            for task in (*self._sessions.values(), *self._renewing):
                cancel(task)
            self._sessions.clear()
            self._keys.clear()
            return
        if self._sweep is not None:
            self._sweep.cancel()
        self._end_all()
        for renewing in self._renewing:
            renewing.cancel()
        self.retry_now()  # who waits finds the client closed

    async def gone(self) -> None:
        """Wait up to 1 s for the closing connections. If the loop is closed earlier, they stay half
        closed, and TLS ends without its closing alert."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_WAIT_S)

    def _end_all(self) -> None:
        ending, self._sessions = self._sessions, {}
        for task in ending.values():
            task.cancel()
        for session in list(self._keys):
            self._closing.add(session.gone)
            session.gone.add_done_callback(self._closing.discard)
            session.close()

    # Credentials

    async def data_of(self, credentials: ConnectionCredentials) -> bytes:
        """Return the client's current authentication data.

        Raises:
            ErrorGettingAuthenticationData: if the application's code fails or takes longer than the
                connection timeout.
        """
        timeout_s = self.settings.connection_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await _data_of(credentials)
        except TimeoutError as error:
            raise ErrorGettingAuthenticationData(
                f"{credentials.method_name}: no authentication data within {timeout_s:g} s "
                "(connection_timeout_ms): the application's supplier must return sooner",
                retryable=True,
            ) from error

    async def _answer_challenge(self, service: ClusterService, session: Session) -> None:
        credentials = service.credentials
        try:
            data = await self.data_of(credentials)
        except PulsarException as error:
            session.fail(error)
        except EncoreError as error:
            session.fail(ErrorGettingAuthenticationData(str(error)))
        else:
            session.credentials_digest = _digest(service, data)
            session.authenticate(method=credentials.method_name, data=data)


def is_cancelled() -> bool:
    """Return True if the running task is being cancelled, rather than something that it waits
    for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _data_of(credentials: ConnectionCredentials) -> bytes:
    try:
        data = await credentials.data()
    except (PulsarException, NotSupportedError):
        raise
    except EncoreError as error:
        raise ErrorGettingAuthenticationData(f"{credentials.method_name}: {error}") from error
    except asyncio.CancelledError as error:
        # For example of a task that several calls of the supplier share: repeat the attempt.
        if is_cancelled():
            raise
        raise ErrorGettingAuthenticationData(
            f"{credentials.method_name}: no authentication data, CancelledError", retryable=True
        ) from error
    except Exception as error:
        # Its text may hold a secret; its type does not.
        kind = type(error).__name__
        text = f"{credentials.method_name}: no authentication data, {kind}"
        raise ErrorGettingAuthenticationData(text) from None
    if not isinstance(data, bytes):
        kind = type(data).__name__
        raise ErrorGettingAuthenticationData(
            f"{credentials.method_name}: authentication data must be bytes, got {kind}"
        )
    return data


def _digest(service: ClusterService, data: bytes) -> bytes:
    """Return a digest of the authentication data and of the TLS files."""
    return hashlib.sha256(data + repr(service.tls.stamp()).encode()).digest()


def _closed_early_error(
    peer: str, address: Address, session: Session, error: NotConnected
) -> PulsarException:
    if session.received_any:
        return error
    if address.tls:
        perhaps = (
            "it may want a client's certificate, or not take ours (AuthenticationTLS, or "
            "tls_certificate_file_path and tls_private_key_file_path)"
        )
    else:
        perhaps = "if that is its port for TLS, use pulsar+ssl://"
    return ConnectError(f"{peer} ended the connection without an answer: {perhaps}")


def _foreign_protocol_error(peer: str, address: Address, error: ProtocolError) -> ConnectError:
    change = "" if address.tls else ", and pulsar+ssl:// for TLS"
    return ConnectError(
        f"{peer} does not speak Pulsar's binary protocol ({error}): check the port (6650, or 6651 "
        f"with TLS){change}"
    )


def _is_usable(task: asyncio.Task[Session]) -> bool:
    if not task.done() or task.cancelled() or task.exception() is not None:
        return False
    return not task.result().closed
