"""The table of `docs/metrics.md`, made from the instruments. Run this file to print it."""

from __future__ import annotations

from collections.abc import Iterator

from pulsar_encore.observability.instruments import INSTRUMENTS, PIP_195, Instrument

_HEAD = "| in Prometheus | in OpenTelemetry | kind | unit | labels | value |"

_UNITS = {"s": "s", "By": "bytes", "{entry}": "entries"}
_IN_NAMES = {"_bytes": "bytes", "_ms_sum": "ms"}


def lines() -> Iterator[str]:
    yield _HEAD
    yield "|---|---|---|---|---|---|"
    for each in INSTRUMENTS:
        yield _line(each)


def unit_of(each: Instrument) -> str:
    """Return the unit of a metric in words; those of PIP-195 have it in their names only."""
    if each.name in PIP_195:
        return next((unit for end, unit in _IN_NAMES.items() if each.name.endswith(end)), "")
    return _UNITS.get(each.unit) or f"{each.unit.strip('{}')}s"


def _line(each: Instrument) -> str:
    other = "the same" if each.name in PIP_195 else f"`{each.name}`"
    labels = ", ".join(f"`{label}`" for label in each.labels)
    cells = (f"`{each.prometheus_name}`", other, each.kind, unit_of(each), labels, each.help)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print("\n".join(lines()))
