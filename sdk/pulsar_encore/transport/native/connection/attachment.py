"""Keeps a consumer, producer or watcher attached to the broker that serves its topic.

The first attachment ends with the operation timeout and raises its error. After a loss it attaches
again, with backoff, until it is stopped or an error is final. A final error is passed to `failed`
once.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ....errors import (
    AuthenticationError,
    AuthorizationError,
    ClosedError,
    ConnectError,
    ConsumerAssignError,
    ConsumerBusy,
    EncoreError,
    ErrorGettingAuthenticationData,
    IncompatibleSchema,
    InvalidTopicName,
    InvalidUrl,
    NotAllowedError,
    NotConnected,
    NotSupportedError,
    ProducerBusy,
    ProducerFenced,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
    TransportTimeout,
    UnsupportedVersionError,
)
from ....errors import LookupError as TopicLookupError
from ....eventloop.affinity import cancel
from ....values.backoff import FailureReports
from ...interface import RetryNotice
from ..lookup.lookup import Lookup
from .addresses import Address, parse
from .cluster_service import ClusterService
from .pool import is_cancelled
from .reconnect_backoff import LONGEST_WAITED_FOR_S, ReconnectBackoff
from .requests import is_limit
from .retry_log import RetryLog
from .session import Session

LOG_NAME: Final = "pulsar_encore.connection"

# End the first attachment, unless `retryable` is set or a broker's limit is the reason. All others
# are retried within the operation timeout.
FINAL_AT_FIRST: Final = (
    AuthenticationError,
    AuthorizationError,
    ClosedError,
    ConnectError,  # not `retryable`: a wrong certificate or port
    ConsumerAssignError,
    ErrorGettingAuthenticationData,
    IncompatibleSchema,
    InvalidTopicName,
    NotAllowedError,
    NotSupportedError,
    ProducerFenced,
    SubscriptionNotFound,
    TopicLookupError,  # not `retryable`: invalid, or weaker than TLS
    TopicNotFound,
    TopicTerminated,
    UnsupportedVersionError,
)
# Another client holds the name, or, after a loss, our own half-dead connection.
BUSY: Final = (ConsumerBusy, ProducerBusy)
# End a consumer or producer that was attached before. All others are retried: a broker answers
# AuthorizationError while its metadata store is away, AuthenticationError while a key server is
# away, IncompatibleSchema and UnsupportedVersionError during a rolling upgrade, TopicNotFound and
# NotAllowedError while a topic is being created again. Application code that runs at each attempt
# raises errors of other classes, which are retried too.
FINAL: Final = (
    ClosedError,  # closed on this side
    InvalidTopicName,
    ProducerFenced,  # another producer took the topic over, and must keep it
    TopicTerminated,
)
_NEVER_S: Final = float("inf")
# Between the last attempt and the end of `reattach_timeout`.
_LAST_ATTEMPT_S: Final = 1.0


class Attachment:
    """Attaches to the owner of a topic, and again after each loss.

    Args:
        attach: Attaches to a broker, or raises the broker's refusal or a loss meanwhile. It may be
            cancelled.
        find: Finds the broker, if it is not the topic's owner.
        retrying: Called after failed attempts to attach again: the first one since the loss, then
            at growing intervals.
        established: It was attached before, so the first attempt is retried like later ones.

    Attributes:
        failure: The error of the last attempt since the loss; None while it is attached.
    """

    def __init__(
        self,
        lookup: Lookup,
        topic: str,
        attach: Callable[[Session], Awaitable[None]],
        failed: Callable[[Exception], None],
        *,
        find: Callable[[], Awaitable[Session]] | None = None,
        retrying: Callable[[RetryNotice], None] | None = None,
        established: bool = False,
        retry_log: RetryLog | None = None,
    ) -> None:
        self.topic: str = topic
        self._retry_log = retry_log or RetryLog(topic, lookup.pool.settings.logger_of)
        self._pool = lookup.pool
        self._attach = attach
        self._failed = failed
        self._retrying = retrying
        self.failure: Exception | None = None
        self._retries: FailureReports | None = None
        self._missing_reported = False  # since the loss
        self._find = find or (lambda: lookup.owner(topic))
        self._settings = settings = lookup.pool.settings
        self._loop = lookup.pool.loop
        self._delays = ReconnectBackoff(settings.backoff_s, settings.max_backoff_s, lookup.pool.rng)
        self._task: asyncio.Task[None] | None = None
        self._proxy: Address | None = None  # of the last attachment, if any
        # The cluster that the address in CLOSE_CONSUMER or CLOSE_PRODUCER came from.
        self._referring_cluster: ClusterService | None = None
        self._lost = False  # since it was attached
        self._was_attached = established
        self._attached_cluster: ClusterService | None = None
        self._backoff_wait: asyncio.Timeout | None = None  # between two attempts
        self._attached_s = _NEVER_S  # loop time
        self._stopped = False
        self._first_timeout: asyncio.Timeout | None = None

    @property
    def moved_to_new_cluster(self) -> bool:
        """True if the client moved to a cluster where the topic may have to be created."""
        at = self._attached_cluster
        return at is not None and at.addresses != self._pool.service.addresses

    def remove_time_limit(self) -> None:
        """Remove the time limit of the running first attempt."""
        if self._first_timeout is not None:
            self._first_timeout.reschedule(None)

    async def first(self) -> None:
        """Attach for the first time, or raise the error of the last attempt."""
        if self._stopped:
            raise self._closed_error()
        self._task = task = self._loop.create_task(self._attach_first())
        try:
            await task
        except asyncio.CancelledError:
            if self._stopped and not is_cancelled():
                raise self._closed_error() from None
            raise

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self.topic}: closed before it was attached")

    async def _attach_first(self) -> None:
        timeout_s = self._settings.operation_timeout_s
        deadline = self._loop.time() + timeout_s
        failure: PulsarException | None = None
        while True:
            try:
                async with asyncio.timeout_at(deadline) as self._first_timeout:
                    await self._attempt(None)
                if not self._lost:
                    self._on_attached()
                    return
                failure = NotConnected(f"{self.topic}: attached, and lost at once")
            except TimeoutError as error:
                text = f"{self.topic}: not attached within {timeout_s:g} s"
                if failure is not None:
                    text += f"; the last error: {failure}"
                raise TransportTimeout(text) from (failure or error)
            except PulsarException as error:
                failure = error
            finally:
                self._first_timeout = None
            delay = min(self._delays.next(), LONGEST_WAITED_FOR_S)
            if self._is_final(failure) or self._loop.time() + delay >= deadline:
                raise failure
            await self._wait(delay)

    def begin(self) -> None:
        """Attach in the background, at once and with retries. No effect during an attempt or the
        wait before one."""
        self._start(None, at_once=True)

    async def _wait(self, delay: float) -> None:
        """Wait before the next attempt. If the pool ends the wait, the backoff starts over."""
        hurried, service = False, self._pool.service
        try:
            async with asyncio.timeout(None) as self._backoff_wait:
                hurried = await self._pool.rest(delay)
        except TimeoutError:
            return  # `retry_now`
        finally:
            self._backoff_wait = None
        if hurried:
            self._delays.reset()
        if service is not self._pool.service:
            # All clients of the cluster move at the same time: spread them.
            await asyncio.sleep(self._delays.next())

    def retry_now(self) -> None:
        self._delays.reset()
        waiting, self._backoff_wait = self._backoff_wait, None
        if waiting is not None:
            waiting.reschedule(self._loop.time())

    def again(self, address: str | None = None) -> None:
        """Attach again after a loss, with backoff; at once if the last broker named the new one,
        `address`."""
        if not self._lost:
            self._delays.on_loss(self._loop.time() - self._attached_s)
        self._lost = True
        if self._retries is None:
            self._retries = FailureReports(self._loop.time())
        if not self._stopped:
            self._retry_log.lost(self.topic, self._loop.time())
        where = _parse_or_none(address, self._log())
        self._referring_cluster = self._pool.service
        self._start(where, at_once=where is not None)

    def _start(self, address: Address | None, *, at_once: bool) -> None:
        if self._stopped or (self._task is not None and not self._task.done()):
            return
        if self._pool.closed:
            return  # its event loop ends
        self._task = self._loop.create_task(self._until_attached(address, at_once))

    async def _until_attached(self, address: Address | None, at_once: bool) -> None:
        failure: Exception | None = None
        delay_s = None if at_once else self._next_delay_s()
        while True:
            if delay_s is not None:
                await self._wait(delay_s)
            left_s = self._time_left()
            if failure is not None and left_s <= 0:
                self._give_up(self._timeout_error(failure))
                return
            try:
                async with asyncio.timeout(None if left_s == _NEVER_S else left_s):
                    if isinstance(failure, (AuthenticationError, AuthorizationError)):
                        await self._pool.refresh_credentials()
                    await self._attempt(address)
                if not self._lost:
                    self._on_attached()
                    return
                delay_s = self._next_delay_s()
            except TimeoutError as error:
                if failure is None:
                    failure = TransportTimeout(f"{self.topic}: the last attempt had no answer")
                    failure.__cause__ = error
                delay_s = self._report(failure)
            except Exception as error:
                failure = error
                if self._is_final(error):
                    self._give_up(error)
                    return
                delay_s = self._report(error)
            address = None

    def _next_delay_s(self) -> float:
        delay_s, left_s = self._delays.next(), self._time_left()
        if delay_s < left_s:
            return delay_s
        return left_s - _LAST_ATTEMPT_S if left_s > _LAST_ATTEMPT_S else left_s

    def _is_final(self, error: Exception) -> bool:
        if self._was_attached:
            return isinstance(error, FINAL)
        if not isinstance(error, PulsarException):
            return True
        if is_limit(error):
            return False
        if isinstance(error, BUSY):
            return True
        return not error.retryable and isinstance(error, FINAL_AT_FIRST)

    def _time_left(self) -> float:
        longest_s = self._settings.reattach_timeout_s
        if longest_s is None or self._retries is None or not self._was_attached:
            return _NEVER_S
        return longest_s - self._retries.elapsed_s(self._loop.time())

    async def _attempt(self, address: Address | None) -> None:
        try:
            await self._find_and_attach(address)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            # From application code, such as a credentials supplier. This task continues.
            raise NotConnected(
                f"{self.topic}: code of the application was cancelled during the attempt"
            ) from error

    async def _find_and_attach(self, address: Address | None) -> None:
        if address is None:
            session = await self._find()
        else:
            session = await self._pool.broker(
                address, through=self._proxy, service=self._referring_cluster
            )
        key = self._pool.key_of(session)
        self._proxy = key.address if key is not None and key.proxy_to is not None else None
        self._lost, self._attached_s = False, _NEVER_S
        await self._attach(session)
        if not self._lost:
            self._attached_s = self._loop.time()
            self._attached_cluster = self._pool.service
            self._was_attached = True

    def _report(self, error: Exception) -> float:
        """Log and report a failed attempt. Return the delay before the next one."""
        self.failure = error
        now_s = self._loop.time()
        retries = self._retries
        if retries is None:
            retries = self._retries = FailureReports(now_s)
        # The first TopicNotFound is always reported: it invalidates cached data such as schemas.
        is_news = isinstance(error, TopicNotFound) and not self._missing_reported
        self._missing_reported |= is_news
        is_reported = retries.failed(now_s, is_news=is_news)
        if is_reported and not isinstance(error, EncoreError):
            self._log().error(
                "%s: code of the application (credentials, key reader) raised %s; the attempt is "
                "retried",
                self.topic,
                type(error).__name__,
                exc_info=error,
            )
        elapsed_s, delay_s = retries.elapsed_s(now_s), self._next_delay_s()
        self._retry_log.refused(
            self.topic,
            now_s,
            error,
            attempts=retries.attempts,
            elapsed_s=elapsed_s,
            next_s=max(0.0, delay_s),
        )
        if is_reported and self._retrying is not None:
            self._retrying(RetryNotice(self.topic, error, retries.attempts, elapsed_s))
        return delay_s

    def _log(self) -> logging.Logger:
        return self._settings.logger_of(LOG_NAME)

    def _on_attached(self) -> None:
        self.failure = None
        self._retries, self._missing_reported = None, False
        self._retry_log.attached(self.topic, self._loop.time())

    def _timeout_error(self, error: Exception) -> Exception:
        text = (
            f"{self.topic}: not attached again within {self._settings.reattach_timeout_s:g} s "
            "(reattach_timeout): close this consumer, reader or producer and make a new one, or "
            f"set a longer reattach_timeout. The last attempt: {error}"
        )
        if isinstance(error, PulsarException):
            late: Exception = copy.copy(error)
            late.args = (text,)
        else:
            late = TransportTimeout(text)
        late.__cause__ = error
        return late

    def _give_up(self, error: Exception) -> None:
        if not self._stopped:
            self._stop()
            self._failed(error)

    def _stop(self) -> None:
        self._stopped = True
        self._retry_log.forget(self.topic)

    async def stop(self) -> None:
        """Stop attaching, and wait for the end of a running attempt, which is cancelled."""
        self._stop()
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def abandon(self) -> None:
        self._stop()
        if self._task is not None:
            cancel(self._task)


def _parse_or_none(address: str | None, log: logging.Logger) -> Address | None:
    """Return the address that a broker named; None if it is malformed, so that a lookup follows."""
    try:
        return None if address is None else parse(address)[0]
    except InvalidUrl as error:
        log.warning("a broker referred to an invalid address: %s", error)
        return None
