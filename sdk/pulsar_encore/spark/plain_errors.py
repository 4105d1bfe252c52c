"""Errors of this package without PySpark's tracebacks.

PySpark sends the text of an exception from a Python worker to the JVM: the traceback of each
exception in its chain, and then the error's own text. An error of this package says what to change,
and the tracebacks only hide that. PySpark leaves them out if the environment variable
SPARK_HIDE_TRACEBACK is set when the worker reports the exception. The worker then ends.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ContextDecorator
from types import TracebackType
from typing import Final

from ..errors import EncoreError

log: Final = logging.getLogger("pulsar_encore.spark")

_HIDE: Final = "SPARK_HIDE_TRACEBACK"


class plain_errors(ContextDecorator):
    """Let PySpark report an `EncoreError` that leaves this block without its tracebacks.

    Does nothing outside of PySpark's workers, nor for any other exception, because its traceback is
    needed. The logger ``pulsar_encore.spark`` has the traceback at the level DEBUG.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, EncoreError) and _in_worker():
            log.debug("the error is reported without this traceback", exc_info=error)
            os.environ[_HIDE] = "1"


def _in_worker() -> bool:
    """Return True if PySpark started this process, as ``python -m pyspark.daemon`` or similar."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] == "pyspark"
