"""Triage of dead letters in bulk: count, store, draw and replay them.

`triage` is the entry point. `pulsar-encore spark triage` is its command line.
"""

from .halt import Halt, HaltedError
from .job import (
    CURSOR,
    TriagePlan,
    check_options,
    dead_topics,
    plan_of,
    read_letters,
    replay_letters,
    triage,
    triage_letters,
)
from .letter_routes import GroupSelection
from .summary import empty_text, halted_text, report_json, report_text
from .tally import HourGroup
from .triage_report import TriageReport

__all__ = [
    "CURSOR",
    "GroupSelection",
    "Halt",
    "HaltedError",
    "HourGroup",
    "TriagePlan",
    "TriageReport",
    "check_options",
    "dead_topics",
    "empty_text",
    "halted_text",
    "plan_of",
    "read_letters",
    "replay_letters",
    "report_json",
    "report_text",
    "triage",
    "triage_letters",
]
