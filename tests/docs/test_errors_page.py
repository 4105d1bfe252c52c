"""Each public error is in one table of `docs/api/errors.md`, and its row agrees with the code."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

import pulsar_encore as encore
from pulsar_encore.transport.native.connection import attachment
from tests.harness.pages import text_of
from tests.harness.public_modules import MODULES

PAGE = text_of("api/errors.md")
SECTION = PAGE.partition("## Who acts on an error\n")[2].partition("\n## ")[0]
TABLES = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", SECTION, re.MULTILINE | re.DOTALL))
CODE, OPERATOR, RETRY, NOBODY = "You, in the code", "The operator", "Retry", "Nobody"
BASES = {"EncoreError", "PulsarException", "TransportError"}
#: Configuration errors whose cause is at the cluster.
OF_THE_CLUSTER = {"TransactionNotEnabledError"}
#: Retryable errors whose cause does not pass without somebody's action, or that are no failure.
NOT_PASSING = {
    "ConsumerAssignError",
    "ConsumerBusy",
    "MemoryBufferIsFull",
    "ProducerBlockedQuotaExceededError",
    "ProducerBlockedQuotaExceededException",
    "ProducerBusy",
    "ProducerQueueIsFull",
    "ReceiveTimeout",
}


def public_errors() -> dict[str, type[BaseException]]:
    """Return each public error by its name on the page."""
    found: dict[str, type[BaseException]] = {}
    for module in (*MODULES, "pulsar_encore.devbroker"):
        for name in import_module(module).__all__:
            each = getattr(import_module(module), name)
            known = module != "pulsar_encore" and each in found.values()
            if isinstance(each, type) and issubclass(each, BaseException) and not known:
                found[f"{module}.{name}".removeprefix("pulsar_encore.")] = each
    return found


ERRORS = public_errors()


def rows() -> dict[str, tuple[str, str, str]]:
    """Return (who acts, what to do, retried) by error."""
    found: dict[str, tuple[str, str, str]] = {}
    for who, text in TABLES.items():
        for names, action, retried in re.findall(r"^\| (`.*?) \| (.*) \| (.*) \|$", text, re.M):
            for name in re.findall(r"`([\w.]+)`", names):
                assert name not in found, f"{name} is in two rows"
                found[name] = who, action, retried
    return found


ROWS = rows()


def test_the_tables_are_those_of_the_people() -> None:
    assert list(TABLES) == [CODE, OPERATOR, RETRY, NOBODY]


def test_each_public_error_is_in_one_table() -> None:
    missing = sorted(set(ERRORS) - set(ROWS) - BASES)
    assert not missing, "docs/api/errors.md: add to the table of the person who acts: " + ", ".join(
        f"| `{name}` | WHAT TO DO | RETRIED |" for name in missing
    )
    assert set(ROWS) <= set(ERRORS)
    assert all(f"`{name}`" in SECTION for name in BASES)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_person_is_that_of_the_class(name: str) -> None:
    """Configuration errors are the caller's. The cause of a retryable error passes."""
    kind, who = ERRORS[name], ROWS[name][0]
    if issubclass(kind, encore.ConfigurationError):
        assert who == (OPERATOR if name in OF_THE_CLUSTER else CODE)
    elif getattr(kind, "retryable", False) and name not in NOT_PASSING:
        assert who == RETRY
    assert ROWS[name][1]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_retries_are_those_of_a_native_attachment(name: str) -> None:
    kind, retried = ERRORS[name], ROWS[name][2]
    assert retried in ("yes", "after a loss", "no")
    if not issubclass(kind, encore.TransportError):
        assert retried == "no" or kind is encore.Timeout
        return
    busy = issubclass(kind, attachment.BUSY)
    at_first = not busy and (kind.retryable or not issubclass(kind, attachment.FINAL_AT_FIRST))
    after_a_loss = not issubclass(kind, attachment.FINAL)
    if retried == "yes":
        assert at_first and after_a_loss
    elif retried == "after a loss":
        assert after_a_loss and not at_first
    elif issubclass(kind, attachment.FINAL_AT_FIRST):
        assert not after_a_loss
