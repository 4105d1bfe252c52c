"""Asking a triage to end early, from another thread.

Owns `Halt`. What is under way is cut off between two steps or by cancelling Spark's jobs; the batch
is repeated by the next run, as after a crash.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from ...errors import EncoreError
from .triage_report import TriageReport


class HaltedError(EncoreError):
    """The triage was asked to end; with a checkpoint the next run goes on where it was."""


class Halt:
    """A way to end a triage, and to know what it had done.

    Attributes:
        report: Of the triage, which counts on in it; None before it began. Counts of a batch are
            there once all of it is done, its groups once the triage has ended.
        asked: It was asked to end.
    """

    report: TriageReport | None
    asked: bool
    _spark: SparkSession | None

    def __init__(self) -> None:
        self.report = None
        self.asked = False
        self._spark = None

    def begin(self, spark: SparkSession, report: TriageReport) -> None:
        """Called by the triage: what is to be cancelled, and what counts."""
        self._spark = spark
        self.report = report
        self.check()

    def ask(self) -> None:
        """Ask it to end, and cancel all that Spark does. May be called again, and should be: a job
        that began just now was not seen."""
        self.asked = True
        if self._spark is not None:
            self._spark.sparkContext.cancelAllJobs()

    def check(self) -> None:
        """Called by the triage before each step.

        Raises:
            HaltedError: It was asked to end.
        """
        if self.asked:
            raise HaltedError("the triage was asked to end")
