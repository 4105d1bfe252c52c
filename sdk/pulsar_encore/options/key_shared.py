"""How keys are distributed in a Key_Shared subscription, with the names of `pulsar-client`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from .. import stock
from ..errors import ConfigurationError
from ..values.pulsar_enum import PulsarEnum
from .checks import boolean, integer
from .enums import coerce

_LAST_HASH: Final = 65_535


class KeySharedMode(PulsarEnum):
    """AutoSplit: the broker assigns hash ranges. Sticky: each consumer declares its own ranges."""

    AutoSplit = 0
    Sticky = 1


class KeySharedPolicy:
    """The builder class of `pulsar-client`. Each setter returns the object."""

    __module__ = "pulsar_encore"

    def __init__(self) -> None:
        self._mode = KeySharedMode.AutoSplit
        self._out_of_order = False
        self._ranges: tuple[tuple[int, int], ...] = ()

    def set_key_shared_mode(self, mode: KeySharedMode) -> KeySharedPolicy:
        self._mode = coerce(KeySharedMode, mode, "key_shared_mode")
        return self

    def get_key_shared_mode(self) -> KeySharedMode:
        return self._mode

    def set_allow_out_of_order_delivery(self, allowed: bool) -> KeySharedPolicy:
        self._out_of_order = boolean(allowed, "allow_out_of_order_delivery")
        return self

    def is_allow_out_of_order_delivery(self) -> bool:
        return self._out_of_order

    def set_sticky_ranges(self, ranges: Iterable[tuple[int, int]]) -> KeySharedPolicy:
        self._ranges = _checked(ranges)
        return self

    def get_sticky_ranges(self) -> list[tuple[int, int]]:
        return list(self._ranges)


class ConsumerKeySharedPolicy:
    """How a consumer takes part in a Key_Shared subscription.

    Args:
        key_shared_mode: Sticky needs `sticky_ranges`.
        allow_out_of_order_delivery: The broker may break the order of a key when consumers are
            added or removed.
        sticky_ranges: The consumer's hash ranges, as (first, last) from 0 to 65,535, without
            overlap.

    Raises:
        ConfigurationError: if a value is wrong.
    """

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: list[tuple[int, int]] | None = None,
    ) -> None:
        self._policy = KeySharedPolicy()
        self._policy.set_key_shared_mode(key_shared_mode)
        self._policy.set_allow_out_of_order_delivery(allow_out_of_order_delivery)
        if sticky_ranges is not None:
            self._policy.set_sticky_ranges(sticky_ranges)
        elif self.key_shared_mode is KeySharedMode.Sticky:
            raise ConfigurationError("KeySharedMode.Sticky needs sticky_ranges")

    @property
    def key_shared_mode(self) -> KeySharedMode:
        return self._policy.get_key_shared_mode()

    @property
    def allow_out_of_order_delivery(self) -> bool:
        return self._policy.is_allow_out_of_order_delivery()

    @property
    def sticky_ranges(self) -> list[tuple[int, int]]:
        """The ranges as (first, last); empty for AutoSplit."""
        return self._policy.get_sticky_ranges()

    def policy(self) -> Any:
        """Return the policy as an object of the C++ client."""
        library = stock.library()
        native = library.KeySharedPolicy()
        native.set_key_shared_mode(getattr(library.KeySharedMode, self.key_shared_mode.name))
        native.set_allow_out_of_order_delivery(self.allow_out_of_order_delivery)
        if self.sticky_ranges:
            native.set_sticky_ranges(self.sticky_ranges)
        return native

    def __repr__(self) -> str:
        return (
            f"ConsumerKeySharedPolicy({self.key_shared_mode}, {self.allow_out_of_order_delivery}, "
            f"{self.sticky_ranges})"
        )


def key_shared_of(value: Any) -> ConsumerKeySharedPolicy | None:
    if value is None or isinstance(value, ConsumerKeySharedPolicy):
        return value
    if not stock.is_one(value, "pulsar.ConsumerKeySharedPolicy"):
        raise ConfigurationError(
            f"key_shared_policy must be a ConsumerKeySharedPolicy, got {type(value).__name__}"
        )
    return ConsumerKeySharedPolicy(
        value.key_shared_mode, value.allow_out_of_order_delivery, value.sticky_ranges or None
    )


def _checked(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    try:
        pairs = tuple((first, last) for first, last in ranges)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"sticky_ranges must be pairs of numbers, as [(0, 1000)], got {ranges!r}"
        ) from error
    if not pairs:
        raise ConfigurationError("sticky_ranges must not be empty")
    for first, last in pairs:
        integer(first, "sticky_ranges: the first of a range", low=0, high=_LAST_HASH)
        integer(last, "sticky_ranges: the last of a range", low=0, high=_LAST_HASH)
    for (_, last), (first, _) in pairwise(sorted(pairs)):
        if first <= last:
            raise ConfigurationError(f"sticky_ranges overlap at {first}")
    return pairs
