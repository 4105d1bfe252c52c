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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..errors import EncoreError

log: Final = logging.getLogger("pulsar_encore.spark")

_HIDE: Final = "SPARK_HIDE_TRACEBACK"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let PySpark report an `EncoreError` that leaves this block without its tracebacks.

    Does nothing outside of PySpark's workers. The tracebacks are logged at the level DEBUG.
    """
    try:
        yield
    except EncoreError as error:
        if _in_worker():
            log.debug("the error is reported without this traceback", exc_info=error)
            os.environ[_HIDE] = "1"
        raise


def _in_worker() -> bool:
    """Return True if PySpark started this process, as ``python -m pyspark.daemon`` or similar."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] == "pyspark"
