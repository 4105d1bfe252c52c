"""Print state directories, plans and evacuations."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from ..deadletters import printable
from ..evacuation import EvacuationReport, NotMoved, TopicPlan
from ..evacuation.state_inspection import StateFound, WaitingMessage

_MAX_TEXT: Final = 500
_MAX_IDS: Final = 5  # listed for each reason


def when(ms: int | None) -> str:
    """Format a time in UTC, to the second; "-" for None."""
    if ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # out of the range of dates: print the number in the state


def waiting_line(waiting: WaitingMessage) -> str:
    return _line(
        {
            "topic": waiting.topic,
            "subscription": waiting.subscription,
            "consumer": waiting.consumer,
            "message_id": waiting.message_id,
            "due": _iso(waiting.due_ms),
            "attempts": waiting.attempts,
        }
    )


def _iso(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return "9999-12-31T23:59:59.999+00:00"  # later than ISO 8601 can express


def found_json(found: StateFound) -> str:
    return _json(
        {
            **asdict(found),
            "topics": [
                {**asdict(each), "attempts": dict(sorted(each.attempts.items()))}
                for each in found.topics
            ],
            "waiting": found.waiting,
            "records": found.records,
        }
    )


def found_text(found: StateFound) -> str:
    lines = [f"state      {printable(found.path, _MAX_TEXT)}", f"owner      {_owner(found)}"]
    lines.append(f"waiting    {found.waiting}")
    lines.append(f"records    {found.records} entries")
    if found.unreadable:
        lines.append(f"unreadable {found.unreadable}: keys or records that are corrupted")
    for each in found.topics:
        lines += ["", _source(each.topic, each.subscription, each.consumer)]
        due = f", due {when(each.earliest_ms)} to {when(each.latest_ms)}" if each.waiting else ""
        lines.append(f"  {each.waiting} waiting{due}")
        counts = ", ".join(f"{n}: {count}" for n, count in sorted(each.attempts.items()))
        lines.append(
            f"  {each.records} records" + (f"; messages by attempts: {counts}" * bool(counts))
        )
    return "\n".join(lines) + "\n"


def _owner(found: StateFound) -> str:
    owner = found.owner
    if owner is None:
        return "unknown"
    who = f"process {owner.pid} on {printable(owner.host, 200)}, since {when(owner.since_ms)}"
    return f"none; the last was {who}" if owner.closed else f"{who}, unless it was killed"


def _source(topic: str, subscription: str, consumer: str) -> str:
    parts = [printable(topic, _MAX_TEXT), printable(subscription, _MAX_TEXT)]
    return "  ".join([*parts, printable(consumer, _MAX_TEXT)] if consumer else parts)


def plan_json(plan: Sequence[TopicPlan]) -> str:
    return _json(
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
                f"{when(each.earliest_ms)} to {when(each.latest_ms)}"
            )
            lines.append(f"    to {printable(each.retry_topic, _MAX_TEXT)}")
    return "\n".join(lines) + "\n"


def report_json(report: EvacuationReport) -> str:
    return _json({**asdict(report), "left": report.left})


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


def _json(value: Any) -> str:
    """Encode as JSON in printable ASCII."""
    return json.dumps(value, indent=2).replace("\x7f", "\\u007f") + "\n"


def _line(value: Any) -> str:
    return json.dumps(value).replace("\x7f", "\\u007f") + "\n"


class EvacuationProgress:
    """Shows the count on one line of stderr, if that is a terminal.

    Args:
        report: The running report.
    """

    def __init__(self, report: EvacuationReport) -> None:
        self._shows_progress = sys.stderr.isatty()
        self._has_output = False
        self._report = report

    def __call__(self, report: EvacuationReport) -> None:
        if self._shows_progress:
            self._has_output = True
            sys.stderr.write(f"\r{report.moved} of {report.waiting} moved")
            sys.stderr.flush()

    def waiting(self) -> None:
        """Tell the user why an interruption takes long."""
        self.close()
        sys.stderr.write(
            "interrupted: waiting for messages in flight, up to a minute; after a kill, some may "
            "be there twice\n"
        )
        sys.stderr.flush()

    def interrupted(self) -> None:
        self.close()
        sys.stderr.write(
            f"interrupted: {self._report.moved} messages were moved, {self._report.left} are left; "
            "run it again to continue\n"
        )

    def close(self) -> None:
        if self._has_output:
            sys.stderr.write("\n")
        self._shows_progress = self._has_output = False
