"""Errors of Spark jobs, beside those of the SDK.

Owns `DataLossError`. Raised in a task or in the driver, it ends the query: Spark shows its text.
"""

from __future__ import annotations

from ..errors import EncoreError


class DataLossError(EncoreError):
    """Messages that were to be read are not there any more, or cannot be read."""


class StalledError(EncoreError):
    """A broker has something for a range, and sends nothing for too long."""


class MalformedValueError(EncoreError):
    """A value is not what `valueFormat` says."""
