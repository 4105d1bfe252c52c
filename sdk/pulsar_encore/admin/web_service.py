"""The web service of one cluster: one method for each question, with a typed answer."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar
from urllib.parse import quote

from ..errors import (
    LookupError,
    NotSupportedError,
    TopicNotFound,
    TransactionNotEnabledError,
    TransactionNotFound,
    TransportError,
)
from ..options import ClientOptions
from ..options.admin_url import check_admin_url
from ..transport.native.connection.pool import ConnectionPool
from ..transport.native.lookup.http_lookup import HttpLookup, path_of
from ..transport.native.service_options import has_httpx2, of_options
from ..values.transaction_id import TxnId
from .internal_stats import InternalStats, internal_stats
from .topic_stats import BacklogAnalysis, TopicStats, backlog_analysis, topic_stats
from .transactions import (
    CoordinatorStats,
    TransactionMetadata,
    coordinator_numbers,
    coordinator_stats,
    transaction_list,
    transaction_metadata,
)

_T = TypeVar("_T")

_TRANSACTIONS: Final = "/admin/v3/transactions"
_SETTING: Final = "transactionCoordinatorEnabled"
# Java's types of the two numbers of an id. No coordinator gives a larger one.
_MAX_MOST: Final = (1 << 31) - 1
_MAX_LEAST: Final = (1 << 63) - 1
# The message of a Java exception, which a trace follows.
_JAVA_MESSAGE: Final = re.compile(r"\nMessage: (.+?)(?:\n|$)")


class WebService:
    """The web service of one cluster. Belongs to the event loop that creates it.

    Topics are full names. Every method raises `TopicNotFound`, `AuthorizationError` (the
    permission is missing), `ConnectError` or another `TransportError`.

    Args:
        options: Options of a client. Its login and TLS options are used.
        url: Address of the web service, which replaces `service_url`.
        option: Name of the option that has the address, for errors about statistics.

    Raises:
        NotSupportedError: if httpx2 is not installed.
    """

    def __init__(
        self,
        options: ClientOptions,
        url: str,
        logger_of: Callable[[str], logging.Logger] = logging.getLogger,
        option: str = "",
    ) -> None:
        self._prefix = f"{option}: " if option else ""
        if not has_httpx2():  # else the error would blame `service_url`, which the user did not set
            raise NotSupportedError(
                "the web service (admin_url) needs httpx2: pip install 'pulsar-encore[http]'"
            )
        clusters, settings = of_options(
            replace(options, service_url=check_admin_url(url)), logger_of
        )
        self._pool = ConnectionPool(clusters.initial_service(), settings, Random())
        self._web = HttpLookup(self._pool)

    async def stats(
        self,
        topic: str,
        *,
        partitioned: bool = False,
        precise: bool = True,
        earliest: bool = False,
    ) -> TopicStats:
        """Return the subscriptions of a topic.

        Args:
            partitioned: True for a partitioned topic, whose partitions are listed, too.
            precise: Count each backlog instead of deriving it from counters.
            earliest: Read the publish time of the first entry of each backlog.
        """
        query = {
            "getPreciseBacklog": str(precise).lower(),
            "getEarliestTimeInBacklog": str(earliest).lower(),
            "subscriptionBacklogSize": "false",
        }
        path = f"/admin/v2/{path_of(topic)}/stats"
        if partitioned:
            path = f"/admin/v2/{path_of(topic)}/partitioned-stats"
            query["perPartition"] = "true"
        return await self._asked(topic_stats, path, query, f"stats of {topic}")

    async def internal_stats(self, topic: str) -> InternalStats:
        """Return the ledgers and cursors of a topic or partition."""
        return await self._asked(
            internal_stats,
            f"/admin/v2/{path_of(topic)}/internalStats",
            {},
            f"internal stats of {topic}",
        )

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions, 0 for a topic without partitions."""
        return (await self._web.partitions(topic, create=False)).number

    async def topics(self, namespace: str) -> list[str]:
        """Return the full names of the topics of ``tenant/namespace``, partitions included."""
        found = await self._web.get(
            f"/admin/v2/namespaces/{namespace}/topics", {"mode": "ALL"}, f"topics of {namespace}"
        )
        if not isinstance(found, list):
            raise _unreadable(f"topics of {namespace}")
        return sorted(each for each in found if isinstance(each, str))

    async def analyze_backlog(self, topic: str, subscription: str) -> BacklogAnalysis:
        """Let the broker read the backlog and count its messages. Slow for a large backlog."""
        path = f"{path_of(topic)}/subscription/{quote(subscription, safe='')}"
        return await self._asked(
            backlog_analysis,
            f"/admin/v2/{path}/analyzeBacklog",
            {},
            f"backlog of {topic}, subscription {subscription}",
            method="POST",
        )

    async def coordinators(self) -> tuple[int, ...]:
        """Return the numbers of the transaction coordinators, in order.

        Raises:
            TransactionNotEnabledError: if the cluster has no transactions. So do the methods below.
        """
        return await self._about_transactions(
            coordinator_numbers, "coordinators", {}, "transaction coordinators"
        )

    async def coordinator_stats(self, coordinator: int) -> CoordinatorStats:
        """Return the state of a coordinator, or raise `TransactionNotFound` if no broker has it."""
        return await self._about_transactions(
            coordinator_stats,
            "coordinatorStats",
            {"coordinatorId": f"{coordinator}"},
            f"transaction coordinator {coordinator}",
        )

    async def open_transactions(self, coordinator: int) -> tuple[TransactionMetadata, ...]:
        """Return the open transactions of a coordinator, the oldest first.

        Raises:
            TransactionNotFound: if the coordinator is not loaded by its broker, or does not exist.
        """
        # The number in the path is compared with the timeout of a transaction, not with its age.
        return await self._about_transactions(
            transaction_list,
            "slowTransactions/0",
            {"coordinatorId": f"{coordinator}"},
            f"transactions of coordinator {coordinator}",
        )

    async def transaction(self, txn_id: TxnId) -> TransactionMetadata:
        """Return an open transaction, or raise `TransactionNotFound`."""
        purpose = f"transaction {txn_id}"
        if txn_id.most > _MAX_MOST or txn_id.least > _MAX_LEAST:
            raise TransactionNotFound(f"{purpose}: no coordinator gives such an id")
        path = f"transactionMetadata/{txn_id.most}/{txn_id.least}"
        return await self._about_transactions(transaction_metadata, path, {}, purpose)

    async def _about_transactions(
        self,
        parse: Callable[[Any], _T],
        path: str,
        query: Mapping[str, str],
        purpose: str,
    ) -> _T:
        try:
            return await self._asked(parse, f"{_TRANSACTIONS}/{path}", query, purpose)
        except TopicNotFound as error:  # status 404
            raise TransactionNotFound(f"{error}") from error
        except LookupError as error:  # status 500
            if (found := _JAVA_MESSAGE.search(f"{error}")) is None:
                raise
            raise LookupError(f"{self._prefix}{purpose}: HTTP 500: {found[1]}") from error
        except TransportError as error:
            if _SETTING in f"{error}":
                raise TransactionNotEnabledError(
                    f"the broker has no transactions: set {_SETTING}=true in broker.conf or "
                    f"standalone.conf, and restart it ({error})"
                ) from error
            raise

    async def _asked(
        self,
        parse: Callable[[Any], _T],
        path: str,
        query: Mapping[str, str],
        purpose: str,
        method: str = "GET",
    ) -> _T:
        purpose = self._prefix + purpose
        answer = await self._web.get(path, query, purpose, method)
        try:
            return parse(answer)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(purpose) from error

    def close(self) -> None:
        self._pool.shutdown()


def _unreadable(purpose: str) -> TransportError:
    return TransportError(f"{purpose}: the answer of the web service cannot be parsed")
