"""Dead letters in bulk: counted, kept, drawn and sent back.

`triage` is the entry point, `pulsar-encore spark triage` a thin layer over it; `chart.chart_png`
draws what it found.
"""

from .halting import Halt, HaltedError
from .job import (
    CURSOR,
    Plan,
    check_options,
    dead_topics,
    plan_of,
    read_letters,
    send_home,
    triage,
    triage_letters,
)
from .report import TriageReport
from .routing import GroupSelection
from .summary import empty_text, halted_text, report_json, report_text
from .tally import HourGroup

__all__ = [
    "CURSOR",
    "GroupSelection",
    "Halt",
    "HaltedError",
    "HourGroup",
    "Plan",
    "TriageReport",
    "check_options",
    "dead_topics",
    "empty_text",
    "halted_text",
    "plan_of",
    "read_letters",
    "report_json",
    "report_text",
    "send_home",
    "triage",
    "triage_letters",
]
