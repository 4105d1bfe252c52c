"""Ending a triage early from another thread.

The next run repeats the batch, as after a crash.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from ...errors import EncoreError
from .triage_report import TriageReport


class HaltedError(EncoreError):
    """The triage was asked to end. With a checkpoint, the next run continues from it."""


class Halt:
    """A handle to end a triage and to see its progress.

    Attributes:
        report: The running report, or None before the start. It counts whole batches; groups are
            added at the end.
        asked: True after `ask`.

    Example:
        ::

            halt = Halt()
            threading.Timer(3600, halt.ask).start()
            triage(spark, topics, options, halt=halt)
    """

    def __init__(self) -> None:
        self.report: TriageReport | None = None
        self.asked: bool = False
        self._spark: SparkSession | None = None

    def begin(self, spark: SparkSession, report: TriageReport) -> None:
        self._spark = spark
        self.report = report
        self.check()

    def ask(self) -> None:
        """Ask the triage to end, and cancel all jobs of Spark.

        Call this repeatedly: a job that starts at the same moment is not cancelled.
        """
        self.asked = True
        if self._spark is not None:
            self._spark.sparkContext.cancelAllJobs()

    def check(self) -> None:
        """Raise HaltedError if the triage was asked to end; called before each step."""
        if self.asked:
            raise HaltedError("the triage was asked to end")
