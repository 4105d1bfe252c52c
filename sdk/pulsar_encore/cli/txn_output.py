"""Print open transactions. Names of topics, subscriptions and roles are escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from ..admin import TransactionMetadata
from ..deadletters import printable
from ..values.transaction_id import TxnId
from .value_text import iso_time, json_text, time_text

_MAX_TEXT: Final = 500
_DEFAULT_NAMESPACE: Final = "persistent://public/default/"


def plain_id(txn_id: TxnId) -> str:
    """Return the spelling of an id that needs no quotes in a shell."""
    return f"{txn_id.most}:{txn_id.least}"


def name_text(topic: str) -> str:
    return printable(topic, _MAX_TEXT)


def position_text(position: tuple[int, int] | None) -> str | None:
    return None if position is None else f"{position[0]}:{position[1]}"


def age_text(ms: int) -> str:
    """Format a duration in whole seconds, such as 0:01:12. A negative one is zero."""
    seconds = max(0, ms) // 1000
    try:
        return str(timedelta(seconds=seconds))
    except OverflowError:  # a timeout may be as long as 2**63 ms
        return f"{seconds} s"


def left_ms(found: TransactionMetadata, now_ms: int) -> int | None:
    """Return the ms until the coordinator aborts it; None if it is ending already."""
    return max(0, found.deadline_ms - now_ms) if found.status == "OPEN" else None


def transaction_fields(found: TransactionMetadata, now_ms: int) -> dict[str, Any]:
    """Return a transaction as a JSON object. Times are in s, or ISO 8601 in UTC."""
    left = left_ms(found, now_ms)
    return {
        "id": str(found.id),
        "state": found.status.lower(),
        "begun": iso_time(found.begun_ms),
        "age": max(0, now_ms - found.begun_ms) / 1000,
        "timeout": found.timeout_ms / 1000,
        "left": None if left is None else left / 1000,
        "until": iso_time(found.deadline_ms),
        "owner": found.owner,
        "topics": [
            {"topic": each.topic, "first": position_text(each.first)} for each in found.topics
        ],
        "subscriptions": [
            {
                "topic": each.topic,
                "subscription": each.subscription,
                "cumulative": each.cumulative,
            }
            for each in found.subscriptions
        ],
    }


def list_json(found: Iterable[TransactionMetadata], now_ms: int) -> str:
    return json_text([transaction_fields(each, now_ms) for each in found])


def print_list(found: Sequence[TransactionMetadata], now_ms: int) -> None:
    from rich.box import HORIZONTALS
    from rich.table import Table
    from rich.text import Text

    from .console import wide_console

    if not found:
        sys.stdout.write("no transaction is open\n")
        return
    # Two lines per row, as in the tables of `dlq`: a terminal is narrow.
    table = Table(box=HORIZONTALS, show_lines=True)
    for name in ("id\nstate", "age\nleft", "timeout"):
        table.add_column(name, no_wrap=True)  # kept whole for copying
    table.add_column("produced to\nacked on", overflow="fold")
    for each in found:
        left = left_ms(each, now_ms)
        row = (
            f"{each.id}\n{printable(each.status.lower(), 20)}",
            f"{age_text(now_ms - each.begun_ms)}\n{'-' if left is None else age_text(left)}",
            age_text(each.timeout_ms),
            "\n".join((_topics(each), _subscriptions(each))),
        )
        table.add_row(*map(Text, row))  # text, not markup
    wide_console().print(table)


def _topics(found: TransactionMetadata) -> str:
    return ", ".join(_short(each.topic) for each in found.topics) or "-"


def _subscriptions(found: TransactionMetadata) -> str:
    names = (
        f"{_short(each.topic)} {printable(each.subscription, _MAX_TEXT)}"
        for each in found.subscriptions
    )
    return ", ".join(names) or "-"


def _short(topic: str) -> str:
    return name_text(topic.removeprefix(_DEFAULT_NAMESPACE))


def transaction_text(found: TransactionMetadata, now_ms: int) -> str:
    """Return everything that the coordinator tells about a transaction."""
    left = left_ms(found, now_ms)
    rest = "" if left is None else f", in {age_text(left)}"
    lines = [
        f"transaction  {found.id}",
        f"state        {printable(found.status.lower(), 20)}",
        f"begun        {time_text(found.begun_ms)}, {age_text(now_ms - found.begun_ms)} ago",
        f"timeout      {age_text(found.timeout_ms)}: at {time_text(found.deadline_ms)}{rest}",
        f"owner        {'any client' if found.owner is None else name_text(found.owner)}",
    ]
    for topic in found.topics:
        first = position_text(topic.first)
        where = "no message yet" if first is None else f"first message {first}"
        lines.append(f"produced to  {name_text(topic.topic)}, {where}")
    for each in found.subscriptions:
        kind = "" if each.cumulative is None else f", cumulative to {printable(each.cumulative)}"
        lines.append(
            f"acked on     {name_text(each.topic)} {printable(each.subscription, _MAX_TEXT)}{kind}"
        )
    return "".join(f"{line}\n" for line in lines)


def transaction_json(found: TransactionMetadata, now_ms: int) -> str:
    return json_text(transaction_fields(found, now_ms))


def ended_text(txn_id: TxnId, *, commit: bool) -> str:
    if commit:
        return f"{txn_id} is committed: its messages are visible, and its acks are done\n"
    return (
        f"{txn_id} is aborted: none of its messages will be visible, and the messages that it "
        "acked are redelivered\n"
    )


def ended_json(txn_id: TxnId, *, commit: bool) -> str:
    return json_text({"id": str(txn_id), "outcome": "committed" if commit else "aborted"})
