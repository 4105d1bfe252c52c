"""The table of `docs/metrics.md`, made from the instruments. Run this file to print it."""

from __future__ import annotations

from collections.abc import Iterator

from pulsar_encore.observability.instruments import INSTRUMENTS, PIP_195, Instrument

_HEAD = "| in Prometheus | in OpenTelemetry | kind | labels | value |"


def lines() -> Iterator[str]:
    yield _HEAD
    yield "|---|---|---|---|---|"
    for each in INSTRUMENTS:
        yield _line(each)


def _line(each: Instrument) -> str:
    other = "the same" if each.name in PIP_195 else f"`{each.name}`"
    labels = ", ".join(f"`{label}`" for label in each.labels)
    return f"| `{each.prometheus_name}` | {other} | {each.kind} | {labels} | {each.help} |"


if __name__ == "__main__":
    print("\n".join(lines()))
