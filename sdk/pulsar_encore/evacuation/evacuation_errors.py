"""What ends an evacuation before its end."""

from __future__ import annotations

from ..errors import EncoreError
from .evacuation_report import EvacuationReport


class EvacuationStoppedError(EncoreError):
    """It could not go on; what was moved so far is moved, and another run goes on from there.

    Attributes:
        report: What it had done by then.
    """

    def __init__(self, message: str, report: EvacuationReport) -> None:
        super().__init__(message)
        self.report: EvacuationReport = report
