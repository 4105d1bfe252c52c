"""`pulsar-encore lag`: how far a subscription is behind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta

from ..consumer.lag import CountedLag, Lag, TopicLag
from ..deadletters import printable
from ..errors import ConfigurationError, ConnectError, TopicNotFound
from ..values.topic_names import full_name, partition_of
from .cluster_client import web_service
from .exit_codes import NOTHING_THERE
from .login import ClusterAccess
from .value_text import json_text


def run_lag(
    cluster: ClusterAccess, admin_url: str | None, topic: str, subscription: str, *, json: bool
) -> int:
    if not admin_url:
        raise ConfigurationError(
            "lag needs the web service: give --admin-url (PULSAR_ADMIN_URL), like "
            "http://localhost:8080. Over the binary protocol only a consumer of the subscription "
            "can tell its position, and that would take messages"
        )
    parts = asyncio.run(_ask(cluster, admin_url, full_name(topic), subscription))
    if all(each.messages is None for each in parts):
        name = printable(f"{full_name(topic)} has no subscription {subscription}", 500)
        sys.stderr.write(f"pulsar-encore: {name}\n")
        return NOTHING_THERE
    lag = Lag(tuple(sorted(parts, key=lambda each: partition_of(each.topic))))
    sys.stdout.write(lag_json(lag) if json else lag_text(lag))
    return 0


async def _ask(
    cluster: ClusterAccess, admin_url: str, topic: str, subscription: str
) -> list[TopicLag]:
    web = web_service(cluster, admin_url)
    try:
        return await CountedLag(web, subscription, asyncio.get_running_loop()).by_partition(topic)
    except TopicNotFound as error:
        raise TopicNotFound(f"{topic}: there is no such topic: check the name") from error
    except ConnectError as error:
        raise ConnectError(f"{error}: check --admin-url (PULSAR_ADMIN_URL)") from error
    finally:
        web.close()


def lag_json(lag: Lag) -> str:
    return json_text(
        {
            "messages": lag.messages,
            "seconds": lag.seconds,
            "exact": lag.exact,
            "partitions": [asdict(each) for each in lag.topics],
        }
    )


def lag_text(lag: Lag) -> str:
    rows: Sequence[tuple[str, TopicLag | Lag]] = [(each.topic, each) for each in lag.topics]
    if len(rows) > 1:
        rows = [*rows, ("sum", lag)]
    return "".join(f"{printable(name)}  {_row(each)}\n" for name, each in rows)


def _row(lag: TopicLag | Lag) -> str:
    if lag.messages is None:
        return "no subscription"
    count = f"{'' if lag.exact else 'about '}{lag.messages} message{'s' * (lag.messages != 1)}"
    age = "age unknown" if lag.seconds is None else f"{timedelta(seconds=round(lag.seconds))}"
    note = "" if lag.exact else " (estimate: a batch counts as one message)"
    return f"{count}, {age} behind{note}"
