"""The tables of `docs/timeouts.md` agree with the code, and no option is missing in them."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest

import pulsar_encore as encore
from pulsar_encore.spark.option_table import OPTIONS
from tests.harness.pages import text_of

PAGE = text_of("timeouts.md")
SECTIONS = dict(re.findall(r"^### `([\w.]+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))

#: Parameters with a number that are no time, interval or limit.
NO_LIMITS = {
    "initial_sequence_id",
    "io_threads",
    "message_listener_threads",
    "message_router",
    "topics",
}
#: A `BatchWorker` has the others of a `Worker`.
OF_BOTH_WORKERS = {"drain", "max_bytes", "reject_limit", "timeout"}

_SETTINGS = "transport.native.client_settings.ClientSettings."
_LETTERS = "consumer.forwarding.letter_producer._BACKOFF."


def rows(section: str) -> list[list[str]]:
    """Return the cells of the tables of a section, without their heads."""
    lines = [each for each in section.splitlines() if each.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells for at, cells in enumerate(table) if cells[0].startswith("`") or at > 1]


def callable_of(name: str) -> Callable[..., Any]:
    found: Any = encore
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def in_seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def test_the_sections_are_found() -> None:
    assert len(SECTIONS) == PAGE.count("\n### ") >= 18


@pytest.mark.parametrize("name", SECTIONS)
def test_the_defaults_are_those_of_the_signature(name: str) -> None:
    parameters = inspect.signature(callable_of(name)).parameters
    listed = rows(SECTIONS[name])
    assert listed
    for option, default, *_ in listed:
        parameter = parameters[option.strip("`")]
        if default == "required":
            assert parameter.default is inspect.Parameter.empty, option
        else:
            expected = eval(default, dict(vars(encore)))
            assert in_seconds(parameter.default) == expected, f"{name}: {option}"


@pytest.mark.parametrize("name", SECTIONS)
def test_no_parameter_with_a_number_is_missing(name: str) -> None:
    listed = {option.strip("`") for option, *_ in rows(SECTIONS[name])}
    if name == "BatchWorker":
        listed |= OF_BOTH_WORKERS
    numbers = {
        each.name
        for each in inspect.signature(callable_of(name)).parameters.values()
        if re.search(r"\b(int|float|timedelta|BackoffLike)\b", str(each.annotation))
    }
    assert numbers - listed - NO_LIMITS == set()


def test_the_units_are_those_of_the_annotation() -> None:
    """A time in ms is an int; only options with the unit "s, td" take a timedelta."""
    for name, section in SECTIONS.items():
        parameters = inspect.signature(callable_of(name)).parameters
        for option, _, unit, *_ in rows(section):
            annotation = str(parameters[option.strip("`")].annotation)
            takes_timedelta = "timedelta" in annotation and "Backoff" not in annotation
            assert (unit == "s, td") == takes_timedelta, f"{name}: {option}"
            if option.strip("`").endswith(("_ms", "_millis")):
                assert unit == "ms", f"{name}: {option}"


def test_the_defaults_of_spark_are_those_of_its_table() -> None:
    options = {spelling: each for each in OPTIONS for spelling in each.spellings}
    listed = rows(PAGE.partition("## Spark")[2].partition("\n## ")[0])
    assert len(listed) == 13
    for names, default, _ in listed:
        for name in re.findall(r"`([\w.]+)`", names):
            assert (options[name].default or "") == default, name


#: The rows of the last table: how each begins, its limit, and the constants of the limit.
FIXED = (
    ("a broker that does not answer PINGs", "{:g} s x 2", _SETTINGS + "keep_alive_s"),
    (
        "delay between attempts to reconnect",
        "{:g} to {:g} s",
        _SETTINGS + "backoff_s",
        _SETTINGS + "max_backoff_s",
    ),
    ("an unused connection", "{:g} s to twice that", _SETTINGS + "idle_s"),
    (
        "unread messages of a consumer",
        "{:B} MiB",
        "transport.native.consumer.native_consumer.MOST_BYTES",
    ),
    ("the schema of a message", "{:g} s", "transport.versioned.writer_schemas.WAIT_S"),
    ("`seek` after own acks", "{:g} s", "transport.native.consumer.seek._WRITTEN_S"),
    ("`Consumer.close`: acks", "{:g} s", "consumer.consumer._CLOSE_S"),
    ("`Consumer.close`: letters", "{:g} s", "consumer.forwarding.forwarder._DRAIN_S"),
    ("`Consumer.close`: a listener", "{:g} s", "consumer.delivery.listener.CLOSE_S"),
    ("`Client.close`: the brokers", "{:g} s", "transport.native.native_transport._CLOSE_S"),
    ("`Client.close`: objects", "{:g} s", "client._OTHER_LOOP_CLOSE_TIMEOUT_S"),
    ("a failed letter", "{:g} to {:g} s", _LETTERS + "min_delay", _LETTERS + "max_delay"),
    ("a transaction of letters", "{:g} s", "consumer.forwarding.letter_groups.TIMEOUT_S"),
    ("worker: a handler after", "{:g} s", "worker.slots.STUCK_AFTER_S"),
    ("worker: a long handler", "{:g} s", "worker.worker_options.LONG_HANDLER_S"),
    ("worker: messages", "{:,}", "worker.worker_options.HELD_LIMIT"),
    ("worker: end of a blocked", "{:g} s", "worker.drain_signals.OVERTIME_S"),
    ("OAuth2", "{:g} s", "authentication.oauth2_issuer._TIMEOUT_S"),
    ("records of a state", "{:D} days", "state.rocks.store_loader.STALE_MS"),
    ("`pulsar-encore dlq`", "{:g} s", "cli.dlq._TIMEOUT_S"),
)


def constant(path: str) -> Any:
    """Return a constant of the package, or an attribute of one, by its path."""
    parts = path.split(".")
    for at in range(len(parts) - 1, 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found: Any = import_module(".".join(("pulsar_encore", *parts[:at])))
            for part in parts[at:]:
                found = getattr(found() if isinstance(found, type) else found, part)
            return found
    raise AssertionError(f"{path} is not in the package")


def test_the_fixed_times_are_those_of_the_code() -> None:
    listed = rows(PAGE.partition("## Times that cannot be changed")[2])
    assert len(listed) == len(FIXED)
    for (name, limit, *_), (begin, template, *paths) in zip(listed, FIXED, strict=True):
        values = [constant(each) for each in paths]
        for letter, divisor in (("B", 2**20), ("D", 86_400_000)):
            if f":{letter}" in template:
                template = template.replace(f":{letter}", ":g")
                values = [each / divisor for each in values]
        assert name.startswith(begin)
        assert limit.startswith(template.format(*values)), name


def test_the_numbers_within_the_text_are_those_of_the_code() -> None:
    assert f"handlers get {constant('worker.drain_deadline.SETTLEMENT_S'):g} s less" in PAGE
    pause_ms = constant("worker.reject_streak.TRIAL_PAUSE_MS")
    assert f"one message each {pause_ms // 1000} s" in PAGE
    longest_ms = constant("worker.breaker._LONGEST_PAUSE_MS")
    assert f"doubles up to {longest_ms // 60_000} min" in PAGE
