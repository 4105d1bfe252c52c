"""Run one measurement in a process of its own, with a time limit.

It may crash, grow or block its process without an effect on others. Usage of the child::

  python -m pulsar_encore.cli.demo.measurement SIDE MEASUREMENT URL TOPIC JSON
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
from dataclasses import asdict
from types import ModuleType
from typing import Any, Final

from ...errors import EncoreError
from ...transport.transport_choice import VARIABLE
from ..login import Login, access
from ..spark import source_options
from .workload import LOGIN, LOGIN_OPTIONS, Figures

_MODULE: Final = "pulsar_encore.cli.demo.measurement"


class MeasurementError(EncoreError):
    """A measurement failed.

    Args:
        lost: True if a signal killed the process or it took too long. A retry may succeed then.
    """

    def __init__(self, message: str, *, lost: bool = False) -> None:
        super().__init__(message)
        self.lost = lost


async def measure(
    side: str,
    name: str,
    url: str,
    topic: str,
    *,
    within_s: float,
    transport: str = "stock",
    login: Login | None = None,
    **parameters: Any,
) -> Figures:
    """Run one measurement in a process of its own.

    Args:
        side: ``"stock"`` or ``"encore"``, or the full name of another module with measurements.
        name: A function of that module.
        transport: Transport of this package's clients; without effect on the stock client.

    Raises:
        MeasurementError: if the measurement failed or took longer than `within_s`.
    """
    if login is not None:
        parameters["login"] = asdict(login)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _MODULE, side, name, url, topic, json.dumps(parameters)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, VARIABLE: transport},
        # an interrupt at the terminal goes to the parent, which ends the child
        start_new_session=True,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), within_s)
    except TimeoutError:
        raise MeasurementError(f"no result in {within_s:g} s", lost=True) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    last = out.decode(errors="replace").strip().rpartition("\n")[2]
    if process.returncode != 0 or not last.startswith("{"):
        text = errors.decode(errors="replace").strip().rpartition("\n")[2]
        code = process.returncode or 0
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        raise MeasurementError(text or f"the process ended {how}", lost=code < 0)
    figures: Figures = json.loads(last)
    return figures


def _side(name: str) -> ModuleType:
    return importlib.import_module(name if "." in name else f"{__package__}.{name}_side")


async def _awaited(result: Any) -> Figures:
    figures: Figures = await result
    return figures


def main(arguments: list[str]) -> int:
    """Print the figures as JSON on the last line of stdout."""
    side, name, url, topic, rest = arguments
    parameters = json.loads(rest)
    if given := parameters.pop("login", None):
        login = Login(**given)
        cluster = access(url, login)
        LOGIN.update(cluster.keywords)
        LOGIN_OPTIONS.update(source_options(cluster, login))
    result = getattr(_side(side), name)(url, topic, **parameters)
    figures = asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
    sys.stdout.write(f"\n{json.dumps(figures)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
