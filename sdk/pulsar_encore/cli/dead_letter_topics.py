"""The dead letter topics of a namespace, recognised by Java's name ending `-DLQ`."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import aclosing
from typing import NamedTuple

from ..client import transport_of
from ..deadletters import DeadLetters, printable
from ..errors import ConfigurationError
from ..values.topic_names import base_name
from .cluster_client import TIMEOUT_S, connect
from .exit_codes import NOTHING_THERE
from .login import ClusterAccess
from .probe import probe
from .value_text import iso_time, json_text

_NAMESPACE = re.compile(r"[-=:.\w]+/[-=:.\w]+", re.ASCII)


class DeadLetterTopic(NamedTuple):
    """A topic with its stored letters, those that were replayed before included."""

    topic: str
    letters: int
    newest_ms: int | None


def run_namespace(cluster: ClusterAccess, namespace: str, *, json: bool) -> int:
    if not _NAMESPACE.fullmatch(namespace):
        raise ConfigurationError(f"namespace must be tenant/namespace, got {namespace[:100]!r}")
    found = asyncio.run(_list(cluster, namespace))
    if json:
        sys.stdout.write(
            json_text(
                [
                    {
                        "topic": each.topic,
                        "letters": each.letters,
                        "newest": iso_time(each.newest_ms),
                    }
                    for each in found
                ]
            )
        )
    else:
        for each in found:
            newest = iso_time(each.newest_ms) or "-"
            sys.stdout.write(f"{each.letters:>7}  {newest:<29}  {printable(each.topic)}\n")
    if not found:
        sys.stderr.write(f"no topic of {namespace} has a name that ends in -DLQ\n")
        return NOTHING_THERE
    return 0


async def _list(cluster: ClusterAccess, namespace: str) -> list[DeadLetterTopic]:
    await probe(cluster, None, timeout_s=TIMEOUT_S)
    async with connect(cluster) as client:
        pattern = f"persistent://{namespace}/.*-DLQ"
        topics = await transport_of(client).topics_matching(pattern)
        found = []
        for topic in sorted(set(map(base_name, topics))):
            count, newest = 0, None
            async with aclosing(DeadLetters(client, topic).letters()) as letters:
                async for letter in letters:
                    if letter.marked:
                        count += 1
                        newest = max(newest or 0, letter.written_ms)
            found.append(DeadLetterTopic(topic, count, newest))
    return sorted(found, key=lambda each: -(each.newest_ms or 0))
