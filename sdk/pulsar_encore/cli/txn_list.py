"""The open transactions of all coordinators, from the answers of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from ..admin import TransactionMetadata
from ..errors import EncoreError, TransactionNotFound


class CoordinatorList(NamedTuple):
    """Open transactions of one coordinator.

    Attributes:
        not_seen: A sentence about each transaction that could not be read.
    """

    found: tuple[TransactionMetadata, ...]
    not_seen: tuple[str, ...] = ()


class OpenList(NamedTuple):
    """Open transactions, the oldest first.

    Attributes:
        not_loaded: A sentence about each coordinator that no broker has loaded.
        failed: A sentence about each transaction or coordinator that could not be read.
    """

    found: tuple[TransactionMetadata, ...]
    not_loaded: tuple[str, ...]
    failed: tuple[str, ...]


Answer: TypeAlias = CoordinatorList | BaseException


def open_list(answers: Mapping[int, Answer]) -> OpenList:
    """Put the answers of the coordinators together, by their numbers.

    Raises:
        EncoreError: if each coordinator failed: the error of the first one.
    """
    found: list[TransactionMetadata] = []
    not_loaded: list[str] = []
    failed: list[str] = []
    errors: list[EncoreError] = []
    for number, answer in answers.items():
        if isinstance(answer, TransactionNotFound):
            not_loaded.append(
                f"coordinator {number} is not loaded by its broker: timeouts of its transactions "
                "do not run. The next client that begins transactions loads it"
            )
        elif isinstance(answer, EncoreError):
            failed.append(f"the transactions of coordinator {number}: {answer}")
            errors.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found += answer.found
            failed += answer.not_seen
    if errors and len(errors) == len(answers):
        raise errors[0]
    found.sort(key=lambda each: (each.begun_ms, each.id))
    return OpenList(tuple(found), tuple(not_loaded), tuple(failed))
