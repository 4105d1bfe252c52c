"""Errors that end a query with their text."""

from __future__ import annotations

from ..errors import EncoreError


class DataLossError(EncoreError):
    """Messages that should be read no longer exist or cannot be read, or rows are lost.

    Rows are lost if only some transactions of a batch could be committed.
    """

    __module__ = "pulsar_encore.spark"


class StalledError(EncoreError):
    """The broker has more messages of a range, but sent nothing within `pollTimeoutMs`."""

    __module__ = "pulsar_encore.spark"


class MalformedValueError(EncoreError):
    """A value does not have the format of `valueFormat`."""

    __module__ = "pulsar_encore.spark"
