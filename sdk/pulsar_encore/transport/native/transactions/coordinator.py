"""One transaction coordinator: its connection, and requests that survive the loss of it.

Coordinators are partitions of a system topic, and move between brokers like topics. Every request
is repeated with backoff until it is answered or its time is over.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import Message

from ....errors import (
    ClosedError,
    NotAllowedError,
    NotConnected,
    PulsarException,
    TransactionCoordinatorNotFoundError,
    TransportTimeout,
    UnknownError,
)
from ....eventloop.shielded_work import shielded
from ....wire import pulsar_pb2 as pb
from ..connection.cluster_service import ClusterService
from ..connection.reconnect_backoff import LONGEST_WAITED_FOR_S, ReconnectBackoff
from ..connection.session import Session
from ..lookup.lookup import Lookup

#: One partition for each coordinator of the cluster.
ASSIGN_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"

# A coordinator that was just loaded, or is moving, answers soon.
_FIRST_DELAY_S: Final = 0.1

# A coordinator that its broker unloads answers with these texts and UnknownError, until it says
# TransactionCoordinatorNotFound.
_UNLOADING: Final = ("Managed ledger was already closed", "rejected from java.util.concurrent")


class CoordinatorRefusal(Exception):
    """The coordinator refused a request.

    Attributes:
        error: The error for the caller.
        resent: True if an earlier request may have reached the coordinator. Then the refusal can be
            the effect of that request.
    """

    def __init__(self, error: PulsarException, resent: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.resent = resent


class Coordinator:
    """Sends requests to the coordinator `number` of a cluster.

    Requests go to no other cluster: there the same id is somebody else's transaction.
    """

    def __init__(self, lookup: Lookup, service: ClusterService, number: int) -> None:
        self._lookup = lookup
        self._pool = lookup.pool
        self._service = service
        self.number: int = number
        self._session: Session | None = None
        self._connecting: asyncio.Task[Session] | None = None
        #: When it was loaded for this client, or has answered last: loop time in s.
        self.reached_s: float = -math.inf

    async def request(self, make: Callable[[int], Message], purpose: str, deadline: float) -> Any:
        """Send a request until it is answered, and return the body of the answer.

        Args:
            make: Makes the command for a request id.
            purpose: For the text of errors.
            deadline: On the clock of the event loop, in s.

        Raises:
            CoordinatorRefusal: if the coordinator refuses the request.
            PulsarException: if there was no answer before the deadline, or a retry is pointless.
        """
        loop, settings = self._pool.loop, self._pool.settings
        delays = ReconnectBackoff(_FIRST_DELAY_S, settings.max_backoff_s, self._pool.rng)
        sent = False  # an earlier request may have arrived
        while True:
            self._pool.check_cluster(self._service)
            reached = False  # this request may have arrived
            try:
                session = self._session
                if session is None or session.closed:
                    async with asyncio.timeout_at(deadline):
                        session = await self._connect()
                left = max(0.0, deadline - loop.time())
                future = session.request(make, purpose, min(left, settings.operation_timeout_s))
                reached = True
                body = await future
                self.reached_s = loop.time()
                return body
            except TimeoutError as error:
                raise self._timeout(purpose, None) from error
            except (TransactionCoordinatorNotFoundError, UnknownError) as error:
                if isinstance(error, UnknownError) and not _is_unloading(error):
                    if reached:
                        self.reached_s = loop.time()
                        raise CoordinatorRefusal(error, sent) from error
                    raise
                # It has left this broker, perhaps after the first of several steps: then another
                # broker does the rest of a commit.
                sent |= reached
                self._forget()
                failure: PulsarException = error
            except (NotConnected, TransportTimeout) as error:
                sent |= reached
                self._forget()
                failure = error
            except PulsarException as error:
                if reached:
                    self.reached_s = loop.time()
                if reached and not error.retryable:
                    raise CoordinatorRefusal(error, sent) from error
                if not error.retryable:
                    raise
                sent |= reached
                failure = error
            if self._pool.closed:
                raise ClosedError("the client was closed before an answer came") from failure
            delay = min(delays.next(), LONGEST_WAITED_FOR_S)
            if loop.time() + delay >= deadline:
                raise self._timeout(purpose, failure) from failure
            await self._pool.rest(delay)

    def _timeout(self, purpose: str, failure: PulsarException | None) -> TransportTimeout:
        last = f"; the last error: {failure}" if failure is not None else ""
        return TransportTimeout(
            f"{purpose}: no answer in time from transaction coordinator {self.number}{last}"
        )

    async def _connect(self) -> Session:
        """Return a connection on which the coordinator is loaded. Callers share one attempt."""
        if self._session is not None and not self._session.closed:
            return self._session
        task = self._connecting
        if task is None or task.done():
            task = self._connecting = self._pool.loop.create_task(self._load())
        return await shielded(task)

    async def _load(self) -> Session:
        session = await self._lookup.owner(f"{ASSIGN_TOPIC}-partition-{self.number}")
        # Loads the coordinator at its broker. Repeating it is harmless.
        try:
            await session.request(
                lambda request_id: pb.CommandTcClientConnectRequest(
                    request_id=request_id, tc_id=self.number
                ),
                f"connect to transaction coordinator {self.number}",
                self._pool.settings.operation_timeout_s,
            )
        except NotAllowedError as error:  # the broker has no transactions
            raise CoordinatorRefusal(error, False) from error
        self._pool.check_cluster(self._service)
        self._session = session
        self.reached_s = self._pool.loop.time()
        return session

    def _forget(self) -> None:
        self._session = None


def _is_unloading(error: UnknownError) -> bool:
    return any(text in str(error) for text in _UNLOADING)
