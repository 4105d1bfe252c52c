"""Print letters, groups and replays. Every text of a letter is escaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from .. import FileLogger, LoggerLevel, UnreadableError, letters
from ..deadletters import (
    NO_FINGERPRINT,
    DiscardReport,
    Letter,
    LetterGroup,
    ReplayReport,
    printable,
)
from .progress import Progress
from .value_text import iso_time, json_text, time_text

_MAX_TEXT: Final = 500
_MAX_FINGERPRINT: Final = 40  # ours have 12 characters; a forged one need not be complete
_MAX_LISTED: Final = 50
_MAX_IDS: Final = 5  # listed for each reason
_DEFAULT_NAMESPACE: Final = "persistent://public/default/"
_NO_TOPIC: Final = "(no REAL_TOPIC)"


def silent_logger() -> Any:
    """Return a logger without output: the C++ client would log to stdout."""
    return FileLogger(LoggerLevel.Error, os.devnull)


def groups_json(groups: Iterable[LetterGroup]) -> str:
    return json_text(
        [
            {
                "fingerprint": group.fingerprint,
                "real_topic": group.real_topic,
                "count": group.count,
                "again": group.again,
                "first": iso_time(group.first_ms),
                "last": iso_time(group.last_ms),
                "error_class": group.error_class,
                "error_message": group.error_message,
                "sample_id": group.sample_id,
            }
            for group in groups
        ]
    )


def letter_json(letter: Letter, most_bytes: int | None) -> str:
    """Return a letter as a JSON object, with at most `most_bytes` of its payload."""
    message = letter.message
    data = b"" if message.has_null_value() else message.data()
    cut = data if most_bytes is None else data[:most_bytes]
    encoding: str | None = "text"
    payload: str | None
    try:
        payload = _decoded(cut) if len(cut) < len(data) else cut.decode("utf-8")
    except UnicodeDecodeError:
        encoding, payload = "base64", b64encode(cut).decode()
    if message.has_null_value():
        encoding = payload = None
    return json_text(
        {
            "id": letter.id,
            "topic": message.topic_name(),
            "real_topic": letter.real_topic,
            "written": iso_time(letter.written_ms),
            "event": iso_time(message.event_timestamp() or None),
            "key": _key(message.partition_key),
            "ordering_key": _key(message.ordering_key),
            "fingerprint": letter.fingerprint or NO_FINGERPRINT,
            "error_class": letter.error_class,
            "error_message": letter.error_message,
            "replay_id": letter.replay_id,
            "evidence": letter.evidence(),
            "properties": letter.user_properties(),
            "payload": payload,
            "payload_encoding": encoding,
            "payload_bytes": len(data),
            "payload_truncated": len(cut) < len(data),
            "encrypted": _encrypted(letter),
        }
    )


def report_json(report: ReplayReport) -> str:
    return json_text(asdict(report))


def _key(read: Callable[[], str]) -> str | None:
    try:
        return read() or None
    except UnreadableError:
        return None


def _encrypted(letter: Letter) -> bool:
    context = letter.message.encryption_context()
    return context is not None and context.is_decryption_failed()


def print_groups(groups: Sequence[LetterGroup], topic: str) -> None:
    from rich.box import HORIZONTALS
    from rich.table import Table
    from rich.text import Text

    from .console import wide_console

    if not groups:
        sys.stderr.write(f"none of the letters of {printable(topic, _MAX_TEXT)} matches\n")
        return
    # Two lines per row: on one line the columns would be wider than a terminal and fold.
    table = Table(box=HORIZONTALS, show_lines=True)
    for name in ("letters\nagain", "fingerprint\na letter", "first\nlast"):
        table.add_column(name, no_wrap=True)  # kept whole for copying
    table.add_column("why\ndied on", overflow="fold")
    for group in groups:
        why = f"{group.error_class}: {group.error_message}".strip(": ")
        # The short name is enough for the options.
        real_topic = (
            printable(group.real_topic.removeprefix(_DEFAULT_NAMESPACE), _MAX_TEXT) or _NO_TOPIC
        )
        row = (
            f"{group.count}\n{group.again or ''}",
            f"{printable(group.fingerprint, _MAX_FINGERPRINT)}\n{group.sample_id}",
            f"{_second(group.first_ms)}\n{_second(group.last_ms)}",
            f"{printable(why, 120)}\n{real_topic}",
        )
        table.add_row(*map(Text, row))  # text, not markup
    wide_console().print(table)


def _second(ms: int) -> str:
    """Format a time in seconds, with the short offset Z, because a terminal is narrow."""
    return time_text(ms // 1000 * 1000).replace("+00:00", "Z")


def letter_text(letter: Letter, most_bytes: int) -> str:
    message = letter.message
    lines = [f"letter       {letter.id} of {printable(message.topic_name(), _MAX_TEXT)}"]
    lines.append(f"written      {time_text(letter.written_ms)}")
    if message.event_timestamp() > 0:
        lines.append(f"event time   {time_text(message.event_timestamp())}")
    for label, read in (("key", message.partition_key), ("ordering key", message.ordering_key)):
        try:
            text = printable(read(), _MAX_TEXT)
        except UnreadableError:
            text = "(raw bytes, which this transport cannot read)"
        if text:
            lines.append(f"{label:<12} {text}")
    lines += _block("evidence", letter.evidence())
    lines += _block("properties", letter.user_properties())
    lines += _payload(letter, most_bytes)
    return "\n".join(lines) + "\n"


def _block(title: str, properties: dict[str, str]) -> list[str]:
    if not properties:
        return [f"{title}: none"]
    lines = [f"{title}:"]
    for name, value in properties.items():
        # Only a stack has line breaks of its own. In any other value a line break is a forgery.
        parts = value.split("\n") if name == letters.ERROR_STACK else [value]
        lines.append(f"  {printable(name, _MAX_TEXT)} = {printable(parts[0], _MAX_TEXT)}")
        lines += [f"      {printable(part, _MAX_TEXT)}" for part in parts[1:]]
    return lines


def _payload(letter: Letter, most_bytes: int) -> list[str]:
    if letter.message.has_null_value():
        return ["payload: none (a tombstone)"]
    data = letter.message.data()
    if _encrypted(letter):
        return [f"payload: encrypted, {len(data)} bytes"]
    cut = data[:most_bytes]
    more = "" if len(cut) == len(data) else f", the first {len(cut)} of them"
    try:
        # A cut may split a character, which does not make the payload binary.
        text = cut.decode("utf-8") if not more else _decoded(cut)
        shown = [f"  {printable(line)}" for line in text.split("\n")]
        kind = "text"
    except UnicodeDecodeError:
        shown = [f"  {cut[at : at + 32].hex(' ')}" for at in range(0, len(cut), 32)]
        kind = "hex"
    return [f"payload, {len(data)} bytes as {kind}{more}:", *shown]


def _decoded(cut: bytes) -> str:
    """Decode text without the character that the cut split, or raise UnicodeDecodeError."""
    return getincrementaldecoder("utf-8")().decode(cut)


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


async def confirm_topics(dead_topic: str, other_topics: Mapping[str, int]) -> bool:
    sys.stderr.write(
        f"Some letters name topics that {printable(dead_topic, _MAX_TEXT)} is not named after. "
        "Their publishers may have forged the names. Letters, with those replayed before:\n"
    )
    for topic, number in sorted(other_topics.items())[:_MAX_LISTED]:
        sys.stderr.write(f"  {number} to {printable(topic, _MAX_TEXT)}\n")
    if len(other_topics) > _MAX_LISTED:
        sys.stderr.write(f"  and {len(other_topics) - _MAX_LISTED} more topics\n")
    sys.stderr.write("Send them there? [y/N] ")
    sys.stderr.flush()
    return (await _read_line()).strip().lower() in ("y", "yes")


async def confirm_discard(dead_topic: str, counts: Mapping[str, int], limit: int | None) -> bool:
    which = (
        "these letters" if limit is None else f"the first {limit} that are left of these letters"
    )
    sys.stderr.write(
        f"Discard {which} of {printable(dead_topic, _MAX_TEXT)}? The counts have those replayed "
        f"before, too. No later replay sends them.\n{_counts(counts)}[y/N] "
    )
    sys.stderr.flush()
    return (await _read_line()).strip().lower() in ("y", "yes")


def discard_json(report: DiscardReport) -> str:
    return json_text(asdict(report))


def discard_text(report: DiscardReport) -> str:
    verb = "would be discarded" if report.dry_run else "discarded"
    text = f"{report.discarded} letters {verb}, {report.passed} not selected\n"
    text += _counts(report.fingerprints)
    if report.at_limit:
        text += f"stopped at the limit of {report.discarded}: there may be more, run it again\n"
    if report.missing:
        named = ", ".join(map(printable, report.missing[:_MAX_LISTED]))
        text += f"no letter {named}: it does not exist, or was replayed or discarded before\n"
    return text


def _counts(fingerprints: Mapping[str, int]) -> str:
    counts = sorted(fingerprints.items(), key=lambda each: -each[1])
    more = len(counts) - _MAX_LISTED
    return "".join(
        f"  {number} with fingerprint {printable(name, _MAX_FINGERPRINT)}\n"
        for name, number in counts[:_MAX_LISTED]
    ) + (f"  and {more} more fingerprints\n" if more > 0 else "")


async def _read_line() -> str:
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def answered(text: str) -> None:
        if not line.done():
            line.set_result(text)

    def read() -> None:
        try:
            # Not sys.stdin: its lock would be held when the process ends.
            text = os.read(sys.stdin.fileno(), 4096).decode(errors="replace")
        except OSError:
            text = ""  # as at the end of the terminal
        with contextlib.suppress(RuntimeError):  # interrupted meanwhile, and the loop is closed
            loop.call_soon_threadsafe(answered, text)

    # Not a thread of the loop's executor: the end of the loop would wait for it.
    threading.Thread(target=read, daemon=True).start()
    return await line


def report_text(report: ReplayReport) -> str:
    verb = "would be sent" if report.dry_run else "sent and acked"
    count = report.selected if report.dry_run else report.replayed
    lines = [f"{count} letters {verb}, {report.passed} not selected; replay {report.replay_id}"]
    for target, number in sorted(report.targets.items()):
        lines.append(f"  {number} to {printable(target, _MAX_TEXT)}")
    if report.at_limit:
        lines.append(f"stopped at the limit of {report.selected}: there may be more, run it again")
    if report.missing:
        named = ", ".join(map(printable, report.missing[:_MAX_LISTED]))
        more = len(report.missing) - _MAX_LISTED
        lines.append(
            f"no letter {named}{f' and {more} more' if more > 0 else ''}: it does not exist, or "
            "was replayed before"
        )
    if report.refused:
        lines.append(f"{report.refused} letters cannot be sent and stay:")
        for reason, number in report.reasons.items():
            ids = [each.letter_id for each in report.refusals if each.reason == reason]
            dots = ", ..." if number > len(ids[:_MAX_IDS]) else ""
            lines.append(f"  {number}: {printable(reason)}")
            if ids:
                lines.append(f"    {', '.join(ids[:_MAX_IDS])}{dots}")
        if (rest := report.refused - sum(report.reasons.values())) > 0:
            lines.append(f"  {rest}: for other reasons")
    return "\n".join(lines) + "\n"


class ReplayProgress(Progress):
    in_flight = "letters in flight, up to half a minute; after a kill, some may be sent again"

    def __init__(self) -> None:
        super().__init__()
        self.report: ReplayReport | None = None  # the running report, the same object each time

    def __call__(self, report: ReplayReport) -> None:
        self.report = report
        self.show(f"{report.replayed} sent, {report.passed} not selected")

    def summary(self) -> str:
        replayed = 0 if self.report is None else self.report.replayed
        return f"{replayed} letters were sent and acked"


class DiscardProgress(Progress):
    in_flight = "the last acks"

    def __init__(self) -> None:
        super().__init__()
        self._discarded = 0

    def __call__(self, report: DiscardReport) -> None:
        self._discarded = report.discarded
        self.show(f"{report.discarded} discarded, {report.passed} not selected")

    def summary(self) -> str:
        return f"{self._discarded} letters were discarded"
