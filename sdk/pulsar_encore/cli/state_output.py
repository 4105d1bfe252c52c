"""Print state directories, plans and evacuations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from ..deadletters import printable
from ..evacuation import EvacuationReport, NotMoved, TopicPlan
from ..evacuation.state_inspection import StateSummary, WaitingMessage
from .progress import Progress
from .value_text import json_text, time_text

_MAX_TEXT: Final = 500
_MAX_IDS: Final = 5  # listed for each reason


def _when(ms: int | None) -> str:
    return "-" if ms is None else time_text(ms)


def waiting_line(waiting: WaitingMessage) -> str:
    fields = {
        "topic": waiting.topic,
        "subscription": waiting.subscription,
        "consumer": waiting.consumer,
        "message_id": waiting.message_id,
        "due": _iso(waiting.due_ms),
        "attempts": waiting.attempts,
    }
    return json_text(fields, indent=None)


def _iso(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return "9999-12-31T23:59:59.999+00:00"  # later than ISO 8601 can express


def found_json(found: StateSummary) -> str:
    owner = None if found.owner is None else asdict(found.owner)
    if owner is not None:
        del owner["sequence"]  # of RocksDB, and of no use to a reader
    return json_text(
        {
            **asdict(found),
            "owner": owner,
            "topics": [
                {**asdict(each), "attempts": dict(sorted(each.attempts.items()))}
                for each in found.topics
            ],
            "waiting": found.waiting,
            "records": found.records,
        }
    )


def found_text(found: StateSummary) -> str:
    lines = [f"state      {printable(found.path, _MAX_TEXT)}", f"owner      {_owner(found)}"]
    lines.append(f"waiting    {found.waiting}")
    lines.append(f"records    {found.records} entries")
    if found.unreadable:
        lines.append(f"unreadable {found.unreadable}: keys or records that are corrupted")
    for each in found.topics:
        lines += ["", _source(each.topic, each.subscription, each.consumer)]
        due = f", due {_when(each.earliest_ms)} to {_when(each.latest_ms)}" if each.waiting else ""
        lines.append(f"  {each.waiting} waiting{due}")
        counts = ", ".join(f"{n}: {count}" for n, count in sorted(each.attempts.items()))
        lines.append(
            f"  {each.records} records" + (f"; messages by attempts: {counts}" * bool(counts))
        )
    return "\n".join(lines) + "\n"


def _owner(found: StateSummary) -> str:
    owner = found.owner
    if owner is None:
        return "unknown"
    who = f"process {owner.pid} on {printable(owner.host, 200)}, since {_when(owner.since_ms)}"
    return f"none; the last was {who}" if owner.closed else f"{who}, unless it was killed"


def _source(topic: str, subscription: str, consumer: str) -> str:
    parts = [printable(topic, _MAX_TEXT), printable(subscription, _MAX_TEXT)]
    return "  ".join([*parts, printable(consumer, _MAX_TEXT)] if consumer else parts)


def plan_json(plan: Sequence[TopicPlan]) -> str:
    return json_text(
        {
            "waiting": sum(each.waiting for each in plan),
            "topics": [asdict(each) for each in plan],
        }
    )


def plan_text(plan: Sequence[TopicPlan]) -> str:
    lines = [f"{sum(each.waiting for each in plan)} messages would be moved"]
    for each in plan:
        if each.waiting:
            lines.append(
                f"  {each.waiting} of {_source(each.topic, each.subscription, each.consumer)}, due "
                f"{_when(each.earliest_ms)} to {_when(each.latest_ms)}"
            )
            lines.append(f"    to {printable(each.retry_topic, _MAX_TEXT)}")
    return "\n".join(lines) + "\n"


def report_json(report: EvacuationReport) -> str:
    return json_text({**asdict(report), "left": report.left})


def report_text(report: EvacuationReport) -> str:
    lines = [f"{report.moved} of {report.waiting} messages moved, {report.left} left"]
    for target, number in sorted(report.targets.items()):
        lines.append(f"  {number} to {printable(target, _MAX_TEXT)}")
    if report.gone:
        lines.append(
            f"{report.gone} messages are no longer in their topic; their records were removed"
        )
        for reason in dict.fromkeys(each.reason for each in report.missing):
            lines += _reason_lines(reason, report.missing)
    if report.refused:
        lines.append(f"{report.refused} messages cannot be moved and stay:")
        for reason, number in report.reasons.items():
            lines.append(f"  {number}: {printable(reason)}")
            lines += _reason_lines(reason, report.refusals)[1:]
    return "\n".join(lines) + "\n"


def _reason_lines(reason: str, among: Sequence[NotMoved]) -> list[str]:
    chosen = [each for each in among if each.reason == reason]
    dots = ", ..." if len(chosen) > _MAX_IDS else ""
    ids = ", ".join(f"{each.message_id}" for each in chosen[:_MAX_IDS])
    topics = ", ".join(sorted({printable(each.topic, _MAX_TEXT) for each in chosen[:_MAX_IDS]}))
    return [f"  {printable(reason)}:", f"    {ids}{dots} of {topics}"] if chosen else []


class EvacuationProgress(Progress):
    in_flight = "messages in flight, up to a minute; after a kill, some may be there twice"

    def __init__(self, report: EvacuationReport) -> None:
        super().__init__()
        self._report = report

    def __call__(self, report: EvacuationReport) -> None:
        self.show(f"{report.moved} of {report.waiting} moved")

    def summary(self) -> str:
        return f"{self._report.moved} messages were moved, {self._report.left} are left"
