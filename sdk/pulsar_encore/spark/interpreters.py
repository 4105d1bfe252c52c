"""The Python interpreter of Spark's workers, and whether it has this package.

Spark takes PYSPARK_PYTHON of its environment, or the `python3` of PATH. Neither is the interpreter
of a program that is started as ``.venv/bin/python job.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from ..errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VARIABLE: Final = "PYSPARK_PYTHON"
_SETTING: Final = "spark.pyspark.python"
_IMPORT: Final = "import pulsar_encore.spark"
_IMPORT_TIMEOUT_S: Final = 60.0
_MAX_OUTPUT: Final = 300


def use_this_python(spark: SparkSession) -> None:
    """Make the workers of a local session run this interpreter, unless another one is named.

    Does nothing on a cluster or for Spark Connect. Raises ConfigurationError if the workers'
    interpreter cannot import this package.
    """
    context = getattr(spark, "_sc", None)
    if context is None or not context.master.startswith("local"):
        return
    if not os.environ.get(_VARIABLE):
        # PySpark reads the setting only when spark-submit starts the program.
        context.pythonExec = context.getConf().get(_SETTING) or sys.executable
    check_python(context.pythonExec)


def check_python(program: str) -> None:
    """Check that an interpreter, by path or name on PATH, can import this package."""
    found = shutil.which(program)
    if found is not None and _is_this_interpreter(found):
        return
    advice = (
        f"set the environment variable {_VARIABLE} to an interpreter that has pulsar-encore with "
        f"its extra spark, such as {sys.executable}, before the session starts"
    )
    if found is None:
        raise ConfigurationError(f"Spark's workers run {program!r}, which does not exist: {advice}")
    try:
        subprocess.run(
            [found, "-c", _IMPORT],
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_IMPORT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        # Its `stderr` is incomplete.
        output = f"it did not answer within {_IMPORT_TIMEOUT_S:g} s"
    except subprocess.CalledProcessError as error:
        output = "".join(error.stderr.strip().splitlines()[-1:]) or str(error)
    except OSError as error:
        output = str(error)
    else:
        return
    raise ConfigurationError(
        f"Spark's workers run {found}, which cannot import pulsar_encore.spark "
        f"({output[:_MAX_OUTPUT]}): {advice}"
    )


def _is_this_interpreter(found: str) -> bool:
    """Return True if a path is another name of `sys.executable`, such as `python3` for `python`.

    The interpreters of several virtual environments may be links to one file, so the directory must
    be the same too.
    """
    try:
        return os.path.samefile(found, sys.executable) and os.path.samefile(
            os.path.dirname(found), os.path.dirname(sys.executable)
        )
    except OSError:
        return False
