"""The report of a triage as text and as JSON, with texts of letters escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from ...deadletters import printable
from .tally import HourGroup
from .triage_report import TriageReport

_MAX_LINES = 30
_MAX_CLASSES = 10
_MAX_FINGERPRINT = 40
_MAX_TOPIC = 60
_MAX_FAILURE = 80
_DEFAULT_NAMESPACE = "persistent://public/default/"
_HEAD = ("letters", "again", "fingerprint", "real topic", "first", "last", "failure")


def report_json(report: TriageReport) -> str:
    """Return the report as a JSON object in printable ASCII, with one group per hour."""
    return json.dumps(asdict(report), indent=2).replace("\x7f", "\\u007f") + "\n"


def report_text(report: TriageReport) -> str:
    lines = [
        _headline(report),
        *(f"there is no topic {printable(each)}" for each in _missing(report)),
    ]
    totals = sum_over_hours(report.groups)
    if totals:
        lines += ["", *_table(totals[:_MAX_LINES])]
        if (rest := totals[_MAX_LINES:]) != []:
            lines.append(f"and {len(rest)} more, {sum(each.count for each in rest):,} letters")
    lines += ["", *_outcome_lines(report)]
    return "\n".join(lines) + "\n"


def empty_text(report: TriageReport) -> str:
    """Return one sentence that says why a triage found no letters."""
    missing = _missing(report)
    if missing:
        return (
            f"there are no letters: there is no topic {', '.join(map(printable, missing))}; check "
            "the name (a dead letter topic comes with its first letter)"
        )
    if report.missing is None:
        return "there are no letters: check the names of the topics"
    return "there are no letters: the topics exist and are empty"


def _missing(report: TriageReport) -> list[str]:
    return [each.removeprefix(_DEFAULT_NAMESPACE) for each in report.missing or ()]


def halted_text(report: TriageReport | None, *, checkpoint: bool) -> str:
    """Return one sentence about the state of a triage that was ended early, and the next step.

    `checkpoint` is false for a dry run. `report` is None if the triage had not begun.
    """
    if not checkpoint and report is not None and report.out is not None:
        where = f"{printable(report.out)} under run={report.run}"
        return f"the files in {where} are incomplete; nothing was sent: run it again"
    if not checkpoint:
        return "nothing was sent or stored: it can be run again"
    next_step = "run it again with the same checkpoint"
    if report is None:
        return f"nothing was sent or stored: {next_step}"
    batches = "1 batch" if report.batches == 1 else f"{report.batches:,} batches"
    done = f"{report.letters + report.duplicates:,} letters were stored in {batches}"
    if report.replay_id is not None:
        done += f", {report.replayed:,} of them sent home (replay {printable(report.replay_id)})"
        next_step += ", which may send some letters of the interrupted batch a second time"
    if not report.batches:
        done = "no batch was finished"
    return f"{done}; nothing is lost: {next_step}"


def sum_over_hours(groups: Iterable[HourGroup]) -> list[HourGroup]:
    """Sum the groups by fingerprint and topic, largest first."""
    sums: dict[tuple[str, str], HourGroup] = {}
    for group in groups:
        key = (group.fingerprint, group.real_topic)
        if key not in sums:
            sums[key] = HourGroup(fingerprint=key[0], real_topic=key[1], hour_ms=None)
        sums[key].add(group)
    return sorted(sums.values(), key=lambda each: (-each.count, each.fingerprint, each.real_topic))


def failure_of(group: HourGroup, max_length: int) -> str:
    """Return a group's failure on one line: `KeyError: 'price'`."""
    parts = [each for each in (group.error_class, group.error_message) if each]
    return printable(": ".join(parts), max_length)


def format_time(ms: int) -> str:
    """Format a time, in UTC to the minute."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%MZ")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"  # an impossible time


def _headline(report: TriageReport) -> str:
    names = ", ".join(
        printable(each.removeprefix(_DEFAULT_NAMESPACE), _MAX_TOPIC) for each in report.topics
    )
    duplicates = f", and {report.duplicates:,} more of the same messages" * bool(report.duplicates)
    return f"{report.letters:,} letters{duplicates} on {names or 'what was read'}"


def _classes(groups: Iterable[HourGroup]) -> str:
    found = sorted({each.error_class or "no class" for each in groups})
    rest = f" and {len(found) - _MAX_CLASSES} more" if len(found) > _MAX_CLASSES else ""
    return ", ".join(printable(each, _MAX_TOPIC) for each in found[:_MAX_CLASSES]) + rest


def _outcome_lines(report: TriageReport) -> list[str]:
    lines = []
    if report.replay_id is not None:
        verb = "would be sent" if report.dry_run else "were sent"
        sent = report.selected if report.dry_run else report.replayed
        lines.append(
            f"{sent:,} {verb} home (replay {printable(report.replay_id)}), "
            f"{report.kept:,} not selected"
        )
        if report.dry_run:
            lines.append("a dry run counts all letters on the topics, also those of earlier runs")
        if report.letters and not (report.selected or report.refused):
            lines.append(f"no letter is selected: the letters are of {_classes(report.groups)}")
        if report.refused:
            lines.append(f"{report.refused:,} cannot be sent:")
            lines += [f"  {count:,}: {reason}" for reason, count in sorted(report.reasons.items())]
    if report.out is not None:
        lines.append(
            f"stored in {printable(report.out)}, run={report.run}"
            if report.batches
            else f"nothing new since the last run, nothing stored in {printable(report.out)}"
        )
    return lines or ["nothing was sent or stored"]


def _table(groups: Sequence[HourGroup]) -> list[str]:
    rows = [
        (
            f"{each.count:,}",
            f"{each.again:,}" if each.again else "",
            printable(each.fingerprint, _MAX_FINGERPRINT),
            printable(each.real_topic.removeprefix(_DEFAULT_NAMESPACE), _MAX_TOPIC)
            or "(no REAL_TOPIC)",
            format_time(each.first_ms) if each.last_ms else "",
            format_time(each.last_ms) if each.last_ms else "",
            failure_of(each, _MAX_FAILURE),
        )
        for each in groups
    ]
    widths = [max(len(row[at]) for row in (_HEAD, *rows)) for at in range(len(_HEAD))]
    return [
        "  ".join(
            cell.rjust(width) if at < 2 else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (_HEAD, *rows)
    ]
