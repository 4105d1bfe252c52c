"""Errors of this package without PySpark's tracebacks.

PySpark sends an exception of a Python worker to the JVM as text, with the traceback of each
exception in its chain before the error's own text. The tracebacks hide which option to change.
PySpark leaves them out if the environment variable SPARK_HIDE_TRACEBACK is set when the worker
reports the exception. The worker then ends.
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

    Does nothing outside of PySpark's workers. The tracebacks are logged at the level DEBUG. A class
    and not a `contextmanager`: a generator cannot be pickled, and cloudpickle may pickle the
    decorated methods by value.
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
